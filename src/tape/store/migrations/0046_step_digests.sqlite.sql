-- What a step of a run was asked for with, as a digest that the client takes, and where it stands in the run: 0, 1, 1.0 …
ALTER TABLE tape_decisions ADD COLUMN digest TEXT NOT NULL DEFAULT '';
ALTER TABLE tape_decisions ADD COLUMN position TEXT NOT NULL DEFAULT '';
ALTER TABLE tape_effects ADD COLUMN digest TEXT NOT NULL DEFAULT '';
ALTER TABLE tape_effects ADD COLUMN position TEXT NOT NULL DEFAULT '';

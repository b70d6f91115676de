-- The id of a tenant's reaction is a qualified name, so that two tenants can use the same id.
UPDATE tape_reaction_cursors SET reaction_id =
    (SELECT '~' || replace(replace(replace(tenant, '%', '%25'), '/', '%2F'), '~', '%7E') || '/' || reaction_id
     FROM tape_reactions WHERE tape_reactions.reaction_id = tape_reaction_cursors.reaction_id)
WHERE reaction_id IN (SELECT reaction_id FROM tape_reactions WHERE tenant <> '');
UPDATE tape_reaction_pace SET reaction_id =
    (SELECT '~' || replace(replace(replace(tenant, '%', '%25'), '/', '%2F'), '~', '%7E') || '/' || reaction_id
     FROM tape_reactions WHERE tape_reactions.reaction_id = tape_reaction_pace.reaction_id)
WHERE reaction_id IN (SELECT reaction_id FROM tape_reactions WHERE tenant <> '');
UPDATE tape_tasks SET reaction_id =
    (SELECT '~' || replace(replace(replace(tenant, '%', '%25'), '/', '%2F'), '~', '%7E') || '/' || reaction_id
     FROM tape_reactions WHERE tape_reactions.reaction_id = tape_tasks.reaction_id)
WHERE reaction_id IN (SELECT reaction_id FROM tape_reactions WHERE tenant <> '');
UPDATE tape_entry_causes SET reaction_id =
    (SELECT '~' || replace(replace(replace(tenant, '%', '%25'), '/', '%2F'), '~', '%7E') || '/' || reaction_id
     FROM tape_reactions WHERE tape_reactions.reaction_id = tape_entry_causes.reaction_id)
WHERE reaction_id IN (SELECT reaction_id FROM tape_reactions WHERE tenant <> '');
UPDATE tape_reactions SET reaction_id =
    '~' || replace(replace(replace(tenant, '%', '%25'), '/', '%2F'), '~', '%7E') || '/' || reaction_id
WHERE tenant <> '';

-- Whether what a reaction begins belongs to the tenant of its entry. Those of open servers begin it in that of the app.
ALTER TABLE tape_reactions ADD COLUMN in_source_tenant INTEGER NOT NULL DEFAULT 0;

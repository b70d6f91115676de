"""Schedules: cron expressions that begin runs."""

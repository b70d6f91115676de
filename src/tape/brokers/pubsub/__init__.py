"""Google Cloud Pub/Sub."""

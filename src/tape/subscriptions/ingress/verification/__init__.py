"""Verification of push deliveries: by signature, bearer token or OIDC token, before anything is parsed."""

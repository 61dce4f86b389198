"""What people ask for over the admin REST, one file for each resource."""

"""What people see while a campaign runs."""

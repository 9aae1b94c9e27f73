"""The limits of one endpoint: requests in flight, request rate, token rate, and the limits that its responses advertise."""

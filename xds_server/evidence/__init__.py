"""What the data plane reports: load per endpoint (LRS) and what became of requests (ALS)."""

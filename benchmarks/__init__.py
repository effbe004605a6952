"""The figures that the product promises, each measured against a baseline in the same run."""

"""The way into Istio through the Kubernetes API: objects of our own, or weights in an admin's."""

"""What the control plane took in and decided, as a file that can be played through another policy."""

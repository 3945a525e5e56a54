"""Stand-ins for the cloud on one machine: emulators, the supervisor that runs them, the demo."""

"""Adapters for other libraries: training, detection, metrics, trackers, model hubs. Each needs its own extra."""

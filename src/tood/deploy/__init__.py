"""Deployment: calibration of a live stream, drift detection, and scoring of files of logits."""

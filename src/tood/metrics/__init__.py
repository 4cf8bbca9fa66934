"""Detection metrics and what is computed along a stream."""


class Trajectory: ...

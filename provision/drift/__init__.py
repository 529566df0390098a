"""What is desired against what was observed: assessments, drifts and their reports."""

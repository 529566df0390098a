"""Assessments, drifts and their reports: the declared state compared with the observed one."""

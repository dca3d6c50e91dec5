"""The prompts of the samples in the report."""

PROMPTS = ["Once upon a time", "One day", "There was once", "In a small village",
           "Once upon a time, there was a dragon", "Lily and Tom",
           "It was a cold winter morning", "The little fox", "Long ago", "Once upon a time, a robot"]

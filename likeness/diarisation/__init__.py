"""Who speaks when in a recording: windows of speech, clusters of them, and segments."""

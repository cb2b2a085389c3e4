"""Where answers are computed, behind one protocol: an engine of this process, of another, or of another machine."""

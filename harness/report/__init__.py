"""Views of a result document: terminal text, a single HTML page, and the files they go to."""

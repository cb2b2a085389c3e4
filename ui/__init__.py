"""The Gradio chat: a client of the HTTP API and of nothing else."""

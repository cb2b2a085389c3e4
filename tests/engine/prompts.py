"""Twenty prompts of different kinds and lengths, 2 to about 200 tokens."""

PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):\n",
    "Water boils at 100 degrees",
    "In 1969, the first human",
    "The three laws of thermodynamics are:\n1.",
    "Dear Sir or Madam,\n\nI am writing to",
    "Q: What is the largest planet?\nA:",
    "SELECT name, age FROM users WHERE",
    "The quick brown fox",
    "A GPU differs from a CPU in that",
    "Les enfants jouent dans",
    "The recipe needs flour, sugar, eggs and",
    "import torch\nimport torch.nn as nn\n\nclass",
    "To be, or not to be,",
    "The following table lists prices:\n| item | price |\n|---|---|\n| apple |",
    "Photosynthesis is the process by which",
    "x^2 - 5x + 6 = 0, therefore x =",
    "Time to first token measures how long a user waits before an answer begins. " * 6 + "In short,",
    "Paged attention stores keys and values in blocks that need not be contiguous. " * 12 + "The benefit is",
]

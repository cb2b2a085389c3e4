"""Documents in, passages out: loading, chunking, embedding, indexes, fusion and the LangChain retriever."""

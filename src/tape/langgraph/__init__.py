"""Durable graphs of LangGraph: a checkpointer on the journal, durable nodes, interrupts as gates.

Needs the extra: `pip install 'tape[langgraph]'`.
"""

"""The demo of a stream: package descriptions as messages, a real vLLM, two subscribers of which one is killed, and a proof."""

"""HTTP in front of a small model: OpenAI's completions and chat, and SGLang's /generate."""

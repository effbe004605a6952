"""The config source: istiod asks us for configuration, by MCP over xDS."""

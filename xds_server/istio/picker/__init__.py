"""The endpoint picker of InferencePool gateways: which instance gets a request, asked per request over ext_proc."""

"""A recorded step as a StepGraph: calls, their order, host overheads, what kernels compute."""

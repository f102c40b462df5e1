"""Ranks on several machines: Ray places an agent on each, which starts them as they are started on one.

`launcher` is a Launcher of airloop/launch above nodes; `node` says what a node is, `agent` is what runs on it,
`network` finds the way between them, `ray_nodes` has Ray's. Ray places, starts and watches; episodes go through the
file system that all machines share, gradients over torch.distributed.
"""

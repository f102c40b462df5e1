"""Ranks on several machines: Ray places an agent on each, which starts them as they are started on one.

`launcher` is a Launcher of airloop/launch for nodes; `node` is the contract of a node, `agent` runs on each of them,
`network` finds the route between two machines, `ray_nodes` implements nodes with Ray. Ray places, starts and watches;
episodes go through the file system that all machines share, gradients over torch.distributed."""

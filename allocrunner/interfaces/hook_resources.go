package interfaces

// HookResources is what an allocation's hooks give to all of its tasks. Nothing starts when a task's driver can't give it to the task.
type HookResources struct {
	Mounts           []Mount
	Devices          []Device
	NetworkNamespace string // the path of the one that the tasks join, as in /run/netns; empty for the machine's own
}

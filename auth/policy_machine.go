package auth

import "github.com/hashicorp/hcl/v2"

// machineBlocks are a policy's blocks about the machine and its agent, with the capabilities that each value of policy
// gives.
var machineBlocks = map[string]map[string]CapabilitySet{
	"node": {"read": CapabilitySet(NodeRead), "write": CapabilitySet(NodeRead | NodeWrite), "deny": 0},
	// Nomad's agent:write has nothing to change here: no cluster to join, no servers to choose.
	"agent": {"read": agentPolicy, "write": agentPolicy, "deny": 0},
}

const agentPolicy = CapabilitySet(AgentRead | AgentMonitor)

var machineSchema = &hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "policy", Required: true}}}

// parseMachine parses a node or an agent block, which decides instead of the preset.
func (p *Policy) parseMachine(block *hcl.Block) hcl.Diagnostics {
	content, diags := block.Body.Content(machineSchema)
	blocks := machineBlocks[block.Type]
	if p.decided&blocks["write"] != 0 {
		diags = append(diags, mistake(block.DefRange, "a second %s block; write one", block.Type))
	}
	p.decided |= blocks["write"]
	attr := content.Attributes["policy"]
	if attr == nil {
		return diags
	}
	name, more := text(attr.Expr)
	set, known := blocks[name]
	if !known && !more.HasErrors() {
		more = append(more, unknownPolicy(attr, name))
	}
	p.machine |= set
	return append(diags, more...)
}

// unknownPolicy returns the mistake of a policy that has an unknown name.
func unknownPolicy(attr *hcl.Attribute, name string) *hcl.Diagnostic {
	return mistake(attr.Expr.Range(), `unknown policy %q; there are "read", "write" and "deny"`, name)
}

package schema

import (
	"cmp"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/jobspec/internal/hcleval"
	"taskapi/internal/slice"
)

// Extension describes what the job specification accepts in a block beyond the tags of the SDK's struct.
type Extension struct {
	New func() any // returns a pointer to a new struct with hcl tags
	// Finish moves the fields of that struct into the SDK's.
	Finish func(target, extra any, content *hcl.BodyContent) []*hcl.Diagnostic
}

// Extensions has the extensions by the SDK's type.
var Extensions = map[reflect.Type]Extension{
	reflect.TypeFor[api.Job]():        {func() any { return &jobExtra{} }, finishJob},
	reflect.TypeFor[api.TaskGroup]():  {func() any { return &groupExtra{} }, finishGroup},
	reflect.TypeFor[api.Task]():       {func() any { return &taskExtra{} }, finishTask},
	reflect.TypeFor[api.Constraint](): {func() any { return &shorthand{} }, finishConstraint},
	reflect.TypeFor[api.Affinity]():   {func() any { return &operators{} }, finishAffinity},
}

// jobExtra: a task right under the job is a group of its own name, before the others; vault is for every task without
// one, and secrets are for every task.
type jobExtra struct {
	Tasks   []*api.Task   `hcl:"task,block"`
	Vault   *api.Vault    `hcl:"vault,block"`
	Secrets []*api.Secret `hcl:"secret,block"`
}

func finishJob(target, extra any, _ *hcl.BodyContent) []*hcl.Diagnostic {
	job, more := target.(*api.Job), extra.(*jobExtra)
	job.TaskGroups = append(slice.Map(more.Tasks, func(task *api.Task) *api.TaskGroup {
		return &api.TaskGroup{Name: new(task.Name), Tasks: []*api.Task{task}}
	}), job.TaskGroups...)
	for _, group := range job.TaskGroups {
		inheritVault(group, more.Vault)
		for _, task := range group.Tasks {
			task.Secrets = append(task.Secrets, more.Secrets...)
		}
	}
	return nil
}

type groupExtra struct {
	Vault *api.Vault `hcl:"vault,block"`
}

func finishGroup(target, extra any, _ *hcl.BodyContent) []*hcl.Diagnostic {
	inheritVault(target.(*api.TaskGroup), extra.(*groupExtra).Vault)
	return nil
}

// inheritVault gives each task without a vault block a copy of its own.
func inheritVault(group *api.TaskGroup, vault *api.Vault) {
	for _, task := range group.Tasks {
		if task.Vault == nil && vault != nil {
			task.Vault = new(*vault)
		}
	}
}

// taskExtra: scaling blocks of a task are labelled with what they scale.
type taskExtra struct {
	Scaling []*taskScaling `hcl:"scaling,block"`
}

type taskScaling struct {
	Resource string         `hcl:",label"`
	Min      *int64         `hcl:"min,optional"`
	Max      *int64         `hcl:"max,optional"`
	Policy   map[string]any `hcl:"policy,block"`
	Enabled  *bool          `hcl:"enabled,optional"`
}

// scalingTypes are the types that the API has for the labels of a task's scaling block.
var scalingTypes = map[string]string{"cpu": "vertical_cpu", "mem": "vertical_mem"}

func finishTask(target, extra any, content *hcl.BodyContent) []*hcl.Diagnostic {
	var diags []*hcl.Diagnostic
	task, more := target.(*api.Task), extra.(*taskExtra)
	blocks := content.Blocks.OfType("scaling")
	for i, s := range more.Scaling {
		kind, ok := scalingTypes[s.Resource]
		if !ok {
			diags = append(diags, hcleval.ErrorAt(blocks[i].DefRange, "Unknown scaling label",
				`A task's scaling block is labelled "cpu" or "mem".`))
			continue
		}
		enabled := cmp.Or(s.Enabled, new(true))
		task.ScalingPolicies = append(task.ScalingPolicies,
			&api.ScalingPolicy{Type: kind, Min: s.Min, Max: s.Max, Policy: s.Policy, Enabled: enabled})
	}
	if i := NormalizeIdentities(task); i >= 0 {
		diags = append(diags, hcleval.ErrorAt(content.Blocks.OfType("identity")[i].DefRange, "Duplicate identity block",
			"The task's default identity is described twice; give one of them a name."))
	}
	return diags
}

// operators are written as keys: `version = ">= 1.2"` for `operator = "version"` with a value.
type operators struct {
	Version        *string `hcl:"version,optional"`
	Semver         *string `hcl:"semver,optional"`
	Regexp         *string `hcl:"regexp,optional"`
	SetContains    *string `hcl:"set_contains,optional"`
	SetContainsAll *string `hcl:"set_contains_all,optional"`
	SetContainsAny *string `hcl:"set_contains_any,optional"`
}

// shorthand is what a constraint has besides.
type shorthand struct {
	operators
	DistinctHosts    *bool   `hcl:"distinct_hosts,optional"`
	DistinctProperty *string `hcl:"distinct_property,optional"`
}

// set sets operand and value to those of the key that is written, and a missing operand to its default.
func (o operators) set(operand, value *string) {
	for field, v := range reflect.ValueOf(o).Fields() {
		if text := v.Interface().(*string); text != nil {
			*operand, *value = nameOf(field), *text
		}
	}
	*operand = cmp.Or(*operand, "=")
}

func nameOf(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("hcl"), ",")
	return name
}

func finishConstraint(target, extra any, content *hcl.BodyContent) []*hcl.Diagnostic {
	c, s := target.(*api.Constraint), extra.(*shorthand)
	s.set(&c.Operand, &c.RTarget)
	switch {
	case s.DistinctHosts != nil:
		c.Operand, c.RTarget = api.ConstraintDistinctHosts, strconv.FormatBool(*s.DistinctHosts)
	case s.DistinctProperty != nil:
		c.Operand, c.LTarget = api.ConstraintDistinctProperty, *s.DistinctProperty
	}
	return tooManyOperators(content)
}

func finishAffinity(target, extra any, content *hcl.BodyContent) []*hcl.Diagnostic {
	a := target.(*api.Affinity)
	extra.(*operators).set(&a.Operand, &a.RTarget)
	return tooManyOperators(content)
}

// tooManyOperators refuses a block that says the operator in two ways: one of them would be lost.
func tooManyOperators(content *hcl.BodyContent) []*hcl.Diagnostic {
	first := content.Attributes["operator"]
	for _, field := range reflect.VisibleFields(reflect.TypeFor[shorthand]()) {
		attr := content.Attributes[nameOf(field)]
		if attr != nil && first != nil {
			return []*hcl.Diagnostic{hcleval.ErrorAt(attr.NameRange, "Conflicting operators",
				"%q and %q both say the operator; keep one.", first.Name, attr.Name)}
		}
		first = cmp.Or(first, attr)
	}
	return nil
}

// DefaultIdentity is the name of the identity that a task always has.
const DefaultIdentity = "default"

// NormalizeIdentities moves the unnamed (or "default") identity to its own field. A second such identity stays where it
// is, and its index is returned; -1 for none.
func NormalizeIdentities(task *api.Task) (duplicate int) {
	duplicate = -1
	var named []*api.WorkloadIdentity
	for i, identity := range task.Identities {
		switch {
		case identity.Name != "" && identity.Name != DefaultIdentity:
			named = append(named, identity)
		case task.Identity != nil:
			duplicate, named = i, append(named, identity)
		default:
			task.Identity = identity
		}
	}
	task.Identities = named
	return duplicate
}

// AddTaskDefaults gives a task its default identity, signals in upper case, and a kill_timeout.
func AddTaskDefaults(task *api.Task) {
	NormalizeIdentities(task)
	task.Identity = cmp.Or(task.Identity, &api.WorkloadIdentity{})
	task.Identity.Name = DefaultIdentity
	for _, identity := range append([]*api.WorkloadIdentity{task.Identity}, task.Identities...) {
		identity.ChangeSignal = strings.ToUpper(identity.ChangeSignal)
	}
	if v := task.Vault; v != nil && v.ChangeSignal != nil {
		v.ChangeSignal = new(strings.ToUpper(*v.ChangeSignal))
	}
	if task.KillTimeout != nil && *task.KillTimeout == 0 {
		task.KillTimeout = new(5 * time.Second)
	}
}

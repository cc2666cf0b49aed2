package review

import (
	"cmp"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/template/parse"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/templates/render"
	"taskapi/internal/ptr"
)

var templateRows = []row[api.Template]{
	{"vault_grace", Note, "it has no meaning, and Nomad ignores it, too",
		func(t *api.Template) bool { return ptr.Deref(t.VaultGrace) != 0 }},
}

var templateLimits = []limit[api.Template]{
	{"template data", "either it, or source, must be there, and not both", nil,
		func(t *api.Template) bool {
			return (ptr.Deref(t.EmbeddedTmpl) == "") != (ptr.Deref(t.SourcePath) == "")
		}},
	{"template destination", "it must be in the task's directory, to which it is relative, or in alloc/, and none of " +
		"taskapi's own names there, such as secrets/api.sock", nil,
		func(t *api.Template) bool { return isDestination(ptr.Deref(t.DestPath)) }},
	among[api.Template]("template change_mode", "noop", "restart", "script", "signal"),
	{"template change_mode", `"signal" can't be with env: a process can't get another environment`, nil,
		func(t *api.Template) bool { return ptr.Deref(t.ChangeMode) != "signal" || !ptr.Deref(t.Envvars) }},
	{"template change_script", `it must be there with change_mode "script"`, nil,
		func(t *api.Template) bool { return ptr.Deref(t.ChangeMode) != "script" || t.ChangeScript != nil }},
	signalName[api.Template]("template change_signal"),
	atLeast[api.Template]("template splay", time.Duration(0)),
	{"template perms", `it must be an octal number such as "0644"`, nil, func(t *api.Template) bool {
		_, err := strconv.ParseUint(cmp.Or(ptr.Deref(t.Perms), "0"), 8, 12)
		return err == nil
	}},
	{"template uid", idWords, nil, func(t *api.Template) bool { return isID(t.Uid) }},
	{"template gid", idWords, nil, func(t *api.Template) bool { return isID(t.Gid) }},
}

var waitLimits = []limit[api.WaitConfig]{
	{"wait min", "it must be at least 0s, and not above max", nil, func(w *api.WaitConfig) bool {
		least, most := ptr.Deref(w.Min), ptr.Deref(w.Max)
		return least >= 0 && (w.Max == nil || least <= most)
	}},
}

var changeScriptLimits = []limit[api.ChangeScript]{
	{"change_script command", "it must name a program", nil,
		func(s *api.ChangeScript) bool { return ptr.Deref(s.Command) != "" }},
	{"change_script timeout", "it must be above 0s", nil,
		func(s *api.ChangeScript) bool { return s.Timeout == nil || *s.Timeout > 0 }},
}

const idWords = "it must be the number of a user or a group, or -1 for the task's own"

// isID reports whether a number can be a user's or a group's; the highest one means none.
func isID(id *int) bool { return id == nil || *id >= -1 && *id < 1<<32-1 }

// isDestination reports whether a template may be rendered there. What a reference stands for is known only later.
func isDestination(path string) bool {
	if path == "" || hasReference(path) {
		return path != ""
	}
	const task = "task"
	at := filepath.Join(task, path)
	top, below, _ := strings.Cut(at, "/")
	return filepath.IsLocal(at) && (top == "alloc" && below != "" || top == task && below != "" &&
		!slices.Contains(taskPaths, below))
}

func (r *reviewer) templates(task *api.Task) {
	seen := map[string]bool{}
	each(r, "template", task.Templates, func(t *api.Template) {
		r.in("template", ptr.Deref(t.DestPath), func() {
			path := filepath.Join("task", ptr.Deref(t.DestPath))
			if seen[path] && ptr.Deref(t.DestPath) != "" {
				r.refuse("template destination", "another template of the task has it; give each its own")
			}
			seen[path] = true
			apply(r, templateRows, t)
			restrict(r, templateLimits, t)
			restrict(r, waitLimits, t.Wait)
			restrict(r, changeScriptLimits, t.ChangeScript)
			r.functions(t, task.Vault != nil)
		})
	})
}

// unconfigured says which setting the functions need that read a program.
func unconfigured(program render.Program) string {
	if program == render.Vault {
		return noVaultWords
	}
	return "no agent of Consul is configured: give its address with the setting consul.address or CONSUL_HTTP_ADDR"
}

// functions refuses a template in the job file that can't be read, or that names functions which are not here.
func (r *reviewer) functions(t *api.Template, hasVault bool) {
	text := ptr.Deref(t.EmbeddedTmpl)
	left, right := cmp.Or(ptr.Deref(t.LeftDelim), "{{"), cmp.Or(ptr.Deref(t.RightDelim), "}}")
	if strings.Count(text, left)+strings.Count(text, "(") > mostNested { // the parser calls itself for each
		return
	}
	parsed, err := render.Parse(render.Template{Text: text, Left: left, Right: right})
	if err != nil {
		r.refuse("template data", "line %s", strings.TrimPrefix(err.Error(), "template: :"))
		return
	}
	named := map[string]bool{}
	for _, t := range parsed.Templates() {
		if t.Tree != nil {
			identifiers(reflect.ValueOf(t.Root), named)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		program := render.Remote(name)
		if why, refused := render.Refused()[name]; refused {
			r.refuse("template data", "it calls %s: %s", name, why)
		} else if program != "" && !slices.Contains(r.host.Programs, program) {
			r.refuse("template data", "it calls %s: %s", name, unconfigured(program))
		} else if program == render.Vault && !hasVault {
			r.refuse("template data", "it calls %s, and the task has no token of Vault: give the task a block vault {}", name)
		}
	}
}

// mostNested bounds what may be nested in a template that is looked through.
const mostNested = 20_000

// identifiers collects the functions that a node and those below it call.
func identifiers(node reflect.Value, named map[string]bool) {
	switch node.Kind() {
	case reflect.Interface, reflect.Pointer:
		if node.IsNil() {
			return
		}
		if id, ok := reflect.TypeAssert[*parse.IdentifierNode](node); ok {
			named[id.Ident] = true
			return
		}
		if _, ok := reflect.TypeAssert[*parse.Tree](node); !ok {
			identifiers(node.Elem(), named)
		}
	case reflect.Slice:
		for i := range node.Len() {
			identifiers(node.Index(i), named)
		}
	case reflect.Struct:
		for _, field := range node.Fields() {
			if field.CanInterface() {
				identifiers(field, named)
			}
		}
	}
}

package jobspec_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"taskapi/allocrunner/jobspec"
	"taskapi/internal/must"
)

// doubling returns a chain of locals each of which is twice the one before: 2^40 bytes at its end.
func doubling() string {
	var b strings.Builder
	b.WriteString("locals {\na0 = \"xx\"\n")
	for i := range 40 {
		fmt.Fprintf(&b, "a%d = \"${local.a%d}${local.a%d}\"\n", i+1, i, i)
	}
	return b.String() + "}\njob \"j\" {}\n"
}

func lists() string {
	var b strings.Builder
	b.WriteString("locals {\na0 = [1]\n")
	for i := range 40 {
		fmt.Fprintf(&b, "a%d = [local.a%d, local.a%d]\n", i+1, i, i)
	}
	return b.String() + "}\njob \"j\" {}\n"
}

// yamlBomb returns a text whose aliases stand for wide^(deep+1) elements.
func yamlBomb(wide, deep int) string {
	var b strings.Builder
	b.WriteString("a0: &a0 [" + strings.Repeat("x,", wide) + "]\n")
	for i := range deep {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*a%d,", i), wide))
	}
	return b.String()
}

// large returns a local s that repeats a text a million times.
func large(element string) string {
	return fmt.Sprintf("locals {\ns = join(\"\", [for i in range(1000): %q])\n}\n", strings.Repeat(element, 1000))
}

func TestHostileInputsAreRefusedSoon(t *testing.T) {
	nested := "[for a in range(1000): [for b in range(1000): [for c in range(1000): [for d in range(1000): 1]]]]"
	big := "\n[for i in range(1000): " +
		"\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"]"
	for name, tc := range map[string]struct{ body, want string }{
		"brackets": {inTask("user = " + strings.Repeat("(", 30_000)), "nested more than"},
		"lists":    {inTask("user = " + strings.Repeat("[", 30_000)), "nested more than"},
		"blocks":   {strings.Repeat("a {\n", 30_000), "nested more than"},
		"templates": {inTask("user = " + strings.Repeat(`"${`, 1000) + "1" + strings.Repeat(`}"`, 1000)),
			"nested more than"},
		"unary":            {inTask("user = " + strings.Repeat("!", 30_000) + "true"), "operators"},
		"chain":            {inTask("user = 1" + strings.Repeat("+1", 30_000)), "operators"},
		"conditions":       {inTask("user = " + strings.Repeat("true ? 1 : ", 30_000) + "1"), "operators"},
		"indexes":          {inTask("user = [1]" + strings.Repeat("[0]", 30_000)), "operators"},
		"doubling strings": {doubling(), "Too large"},
		"doubling lists":   {lists(), "Too large"},
		"nested for":       {inTask("config {\nx = " + nested + "\n}"), "Too large"},
		"hidden by try": {"locals {\ns = join(\"\", " + big + ")\n}\n" +
			inTask("config {\nx = try([for a in range(1000): \"${local.s}\"], 1)\n}"), "Too large"},
		"range":            {inTask("config {\nx = range(0, 1000000000)\n}"), "more than 1024 values"},
		"wide format":      {inTask("user = format(\"%999999999s\", \"x\")"), "three digits"},
		"huge number":      {inTask("user = 1e999999999"), "Number out of range"},
		"growing number":   {inTask("user = " + strings.Repeat("1e1000*", 5000) + "1"), "Number out of range"},
		"growing template": {inTask("user = \"${" + strings.Repeat("1e1000*", 5000) + "1}\""), "Number out of range"},
		"indent":           {inTask("user = indent(1000000000, \"a\\nb\")"), "0 to 1000"},
		"replace": {"locals {\ns = join(\"\", " + big + ")\n}\n" +
			inTask("user = replace(local.s, \"x\", local.s)"), "16 MiB"},
		"regex_replace": {"locals {\ns = join(\"\", " + big + ")\n}\n" +
			inTask("user = regex_replace(local.s, \"x\", local.s)"), "16 MiB"},
		"join": {"locals {\ns = join(\"\", " + big + ")\n}\n" + inTask("user = join(local.s, range(1000))"),
			"16 MiB"},
		"formatlist": {"locals {\ns = join(\"\", " + big + ")\n}\n" +
			inTask("config {\nx = formatlist(\"%d${local.s}\", range(1000))\n}"), "16 MiB"},
		"setproduct": {inTask("config {\nx = setproduct(range(1000), range(1000), range(1000))\n}"),
			"100000 elements"},
		"bcrypt":            {inTask("user = bcrypt(\"x\", 31)"), "limited to 14"},
		"yaml":              {inTask("config {\nx = yamldecode(<<EOT\n" + yamlBomb(10, 9) + "EOT\n)\n}"), "more than 32 MiB"},
		"yaml, few aliases": {inTask("config {\nx = yamldecode(<<EOT\n" + yamlBomb(3, 21) + "EOT\n)\n}"), "more than 32 MiB"},
		"deep yaml": {inTask("config {\nx = yamldecode(\"" + strings.Repeat("[", 102) + strings.Repeat("]", 102) +
			"\")\n}"), "nested more than 100"},
		"json":      {large(",1") + inTask("config {\nx = jsondecode(\"[1${local.s}]\")\n}"), "more than 32 MiB"},
		"deep json": {large("[") + inTask("config {\nx = jsondecode(local.s)\n}"), "nested more than 100"},
		"csv":       {large(",\n") + inTask("config {\nx = csvdecode(\"a,b\\n${local.s}\")\n}"), "more than 32 MiB"},
		"JSON objects": {`{"ID": "j", "TaskGroups": [` + strings.Repeat("{},", 50_000) + `{}]}`,
			"more than 40000 objects"},
		"device":    {inTask("user = file(\"/dev/zero\")"), "no regular file"},
		"directory": {inTask("user = file(\"/\")"), "it is a directory"},
		"template itself": {inTask("user = templatefile(\"self.tmpl\", {})"),
			"self.tmpl:1: templatefile can't be called so"},
		"dynamic": {"job \"j\" {\ndynamic \"group\" {\nfor_each = range(1000)\nlabels = [\"g${group.value}\"]\ncontent " +
			"{\ndynamic \"task\" {\n" +
			"for_each = range(1000)\nlabels = [\"t${task.value}\"]\ncontent {}\n}\n}\n}\n}\n", "more than 10000 blocks"},
		"dynamic in config": {inTask("config {\ndynamic \"a\" {\nfor_each = range(1000)\ncontent {\ndynamic \"b\" " +
			"{\nfor_each = range(1000)\ncontent {}\n}\n}\n}\n}"), "more than 10000 blocks"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must.OK(t, os.WriteFile(filepath.Join(dir, "self.tmpl"), []byte(`${templatefile("self.tmpl", {})}`),
				0o600))
			_, err := jobspec.Parse(jobspec.Config{Filename: "job.hcl", Dir: dir, Body: []byte(tc.body)})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				text := fmt.Sprint(err)
				t.Errorf("got:\n%s\nwant: %s", text[:min(len(text), 600)], tc.want)
			}
		})
	}
}

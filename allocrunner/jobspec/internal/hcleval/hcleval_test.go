package hcleval_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function/stdlib"

	"taskapi/allocrunner/jobspec/internal/hcleval"
	"taskapi/internal/must"
)

// evaluate evaluates an expression with var.name = "x" and local.n = 2, and returns it as JSON.
func evaluate(tb testing.TB, dir, expression string) (string, hcl.Diagnostics) {
	tb.Helper()
	e := hcleval.New(dir)
	expr, diags := e.ParseExpression([]byte(expression), "expr")
	if diags.HasErrors() {
		return "", diags
	}
	v, _, diags := e.Plain(expr, e.Context(map[string]cty.Value{
		"var":   cty.ObjectVal(map[string]cty.Value{"name": cty.StringVal("x")}),
		"local": cty.ObjectVal(map[string]cty.Value{"n": cty.NumberIntVal(2)}),
	}, true))
	if diags.HasErrors() {
		return "", diags
	}
	text := must.Get(stdlib.JSONEncode(v))(tb)
	return text.AsString(), nil
}

func TestRuntimeReferencesStayText(t *testing.T) {
	for expression, want := range map[string]string{
		`NOMAD_PORT_http`:                     `"${NOMAD_PORT_http}"`,
		`"${NOMAD_PORT_http}"`:                `"${NOMAD_PORT_http}"`,
		`"${ NOMAD_PORT_http }"`:              `"${NOMAD_PORT_http}"`,
		`"a-${var.name}-${NOMAD_X}"`:          `"a-x-${NOMAD_X}"`,
		`env["HOME"]`:                         `"${env[\"HOME\"]}"`,
		`"${env["A B"]}"`:                     `"${env[\"A B\"]}"`,
		`attr.kernel.name`:                    `"${attr.kernel.name}"`,
		`[attr.a, attr.a.b]`:                  `["${attr.a}","${attr.a.b}"]`,
		`node.unique.id`:                      `"${node.unique.id}"`,
		`meta.a-b`:                            `"${meta.a-b}"`,
		`"$${NOMAD_X}"`:                       `"${NOMAD_X}"`,
		`"%%{ if }"`:                          `"%{ if }"`,
		`[for x in ["p"] : "${x}${NOMAD_X}"]`: `["p${NOMAD_X}"]`,
		`{ for k, v in { a = b } : k => v }`:  `{"a":"${b}"}`,
		`[for x in ["p"] : [for y in ["q"] : "${x}${y}${z}"]]`: `[["pq${z}"]]`,
		`[for var in ["p"] : var]`:                             `["p"]`,
		`x`:                                                    `"${x}"`,
		`{ key = value }`:                                      `{"key":"${value}"}`,
		`{ (key) = value }`:                                    `{"${key}":"${value}"}`,
		`{ "${key}" = 1 }`:                                     `{"${key}":1}`,
		`true ? NOMAD_A : NOMAD_B`:                             `"${NOMAD_A}"`,
		`upper(NOMAD_a)`:                                       `"${NOMAD_A}"`,
		`convert("5", number)`:                                 `5`,
		`convert(["a"], list(string))`:                         `["a"]`,
		`convert({a = "1"}, object({a = number}))`:             `{"a":1}`,
		`try(var.nope, local.n)`:                               `2`,
		`can(var.nope)`:                                        `false`,
		`[{ a = 1 }, { a = 2 }][*].a`:                          `[1,2]`,
		`"%{ for x in ["a", "b"] }${x}-${NOMAD_X} %{ endfor }"`: `"a-${NOMAD_X} b-${NOMAD_X} "`,
		"<<EOT\n${NOMAD_X} ${var.name}\nEOT\n":                  `"${NOMAD_X} x\n"`,
	} {
		got, diags := evaluate(t, t.TempDir(), expression)
		if diags.HasErrors() || strings.ReplaceAll(got, `\u003e`, ">") != want {
			t.Errorf("%s: got %s, want %s (%v)", expression, got, want, diags)
		}
	}
}

func TestFunctions(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"a.txt": "A", "b/c.txt": "C", "t.tmpl": "${who} ${NOMAD_X}",
		"bin": "\xff\x00"} {
		path := filepath.Join(dir, name)
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must.OK(t, os.WriteFile(path, []byte(content), 0o600))
	}
	for expression, want := range map[string]string{ // the results as regular expressions
		`abs(-3)`: `3`, `abspath("/a/../b")`: `"/b"`, `base64decode("YQ==")`: `"a"`, `base64encode("a")`: `"YQ=="`,
		`basename("/a/b")`: `"b"`,
		`bcrypt("x", 4)`:   `"\$2a\$04\$.+"`, `bcrypt("x")`: `"\$2a\$10\$.+"`, `can(1)`: `true`, `ceil(1.2)`: `2`,
		`chomp("a\n")`:                `"a"`,
		`chunklist(["a","b","c"], 2)`: `\[\["a","b"\],\["c"\]\]`, `cidrhost("10.0.0.0/8", 2)`: `"10.0.0.2"`,
		`cidrnetmask("10.0.0.0/8")`:       `"255.0.0.0"`,
		`cidrsubnet("10.0.0.0/8", 8, 1)`:  `"10.1.0.0/16"`,
		`cidrsubnets("10.0.0.0/8", 8, 8)`: `\["10.0.0.0/16","10.1.0.0/16"\]`,
		`coalesce(null, "a")`:             `"a"`, `coalescelist([], ["a"])`: `\["a"\]`, `compact(["a", ""])`: `\["a"\]`,
		`concat(["a"], ["b"])`: `\["a","b"\]`,
		`contains(["a"], "a")`: `true`, `csvdecode("a,b\n1,2")`: `\[{"a":"1","b":"2"}\]`, `dirname("/a/b")`: `"/a"`,
		`distinct(["a","a"])`:   `\["a"\]`,
		`element(["a","b"], 3)`: `"b"`, `file("a.txt")`: `"A"`, `filebase64("bin")`: `"/wA="`, `fileexists("a.txt")`: `true`,
		`fileexists("z")`:          `false`,
		`fileset(".", "**/*.txt")`: `\["a.txt","b/c.txt"\]`, `fileset(".", "*.none")`: `\[\]`,
		`flatten([["a"],["b"]])`: `\["a","b"\]`, `floor(1.8)`: `1`,
		`format("%s-%03d", "a", 7)`: `"a-007"`, `formatdate("YYYY", "2020-01-02T03:04:05Z")`: `"2020"`,
		`formatlist("%s!", ["a","b"])`: `\["a!","b!"\]`,
		`indent(2, "a\nb")`:            `"a\\n  b"`, `index(["a","b"], 1)`: `"b"`, `join("-", ["a","b"], ["c"])`: `"a-b-c"`,
		`jsondecode("{\"a\":1}")`: `{"a":1}`,
		`jsonencode([1])`:         `"\[1\]"`, `keys({a=1})`: `\["a"\]`, `length(["a"])`: `1`, `length("äb")`: `2`,
		`length({})`:                `0`,
		`log(8, 2)`:                 `3`,
		`lookup({a="1"}, "b", "d")`: `"d"`, `lower("A")`: `"a"`, `max(1, 2)`: `2`,
		`md5("a")`: `"0cc175b9c0f1b6a831c399e269772661"`, `merge({a=1}, {b=2})`: `{"a":1,"b":2}`,
		`min(1, 2)`: `1`, `parseint("ff", 16)`: `255`, `pathexpand("/a")`: `"/a"`, `pow(2, 3)`: `8`, `range(3)`: `\[0,1,2\]`,
		`regex("[a-z]", "1b")`:              `"b"`,
		`regex_replace("a1", "[0-9]", "x")`: `"ax"`, `regexall("[a-z]", "a1b")`: `\["a","b"\]`,
		`replace("abc", "b", "-")`: `"a-c"`, `reverse([1, 2])`: `\[2,1\]`,
		`setintersection(["a"], ["a","b"])`: `\["a"\]`, `setproduct(["a"], ["b"])`: `\[\["a","b"\]\]`,
		`setsubtract(["a","b"], ["b"])`: `\["a"\]`, `setunion(["a"], ["b"])`: `\["a","b"\]`,
		`sha1("a")`: `"86f7e437faa5a7fce15d1ddcb9eaeaea377667b8"`, `length(sha256("a"))`: `64`, `length(sha512("a"))`: `128`,
		`signum(-5)`:           `-1`,
		`slice([1,2,3], 1, 2)`: `\[2\]`, `sort(["b","a"])`: `\["a","b"\]`, `split(",", "a,b")`: `\["a","b"\]`,
		`strlen("äb")`: `2`, `strrev("ab")`: `"ba"`,
		`substr("abc", 1, 1)`: `"b"`, `templatefile("t.tmpl", { who = "me" })`: `"me \$\{NOMAD_X\}"`,
		`timeadd("2020-01-01T00:00:00Z", "1h")`: `"2020-01-01T01:00:00Z"`,
		`timestamp()`:                           `"20..-.*Z"`, `title("ab")`: `"Ab"`, `trim("-a-", "-")`: `"a"`,
		`trimprefix("ab", "a")`: `"b"`,
		`trimspace(" a ")`:      `"a"`, `trimsuffix("ab", "b")`: `"a"`,
		`upper("a")`: `"A"`, `urlencode("a b")`: `"a\+b"`, `uuidv4()`: `"[0-9a-f-]{36}"`,
		`uuidv5("dns", "example.org")`: `"aad03681-8b63-5304-89e0-8ca8f49461b5"`, `values({a=1})`: `\[1\]`,
		`yamldecode("a: [1]")`: `{"a":\[1\]}`, `yamlencode({a=1})`: `"\\"a\\": 1\\n"`, `zipmap(["a"], [1])`: `{"a":1}`,
	} {
		got, diags := evaluate(t, dir, expression)
		if diags.HasErrors() {
			t.Errorf("%s: %v", expression, diags)
		} else if !regexp.MustCompile(`^` + want + `$`).MatchString(got) {
			t.Errorf("%s: got %s, want %s", expression, got, want)
		}
	}
}

func TestFunctionErrors(t *testing.T) {
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "bin"), []byte{0xff}, 0o600))
	must.OK(t, os.WriteFile(filepath.Join(dir, "large"), make([]byte, hcleval.MaxFileBytes+1), 0o600))
	must.OK(t, os.WriteFile(filepath.Join(dir, "bad.tmpl"), []byte("${"), 0o600))
	must.OK(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	for expression, want := range map[string]string{
		`file("bin")`:                  "filebase64 reads other files",
		`file("large")`:                "larger than 4 MiB",
		`file("fifo")`:                 "no regular file",
		`fileexists("fifo")`:           "no regular file",
		`file("none")`:                 "no such file",
		`fileset(".", "[")`:            "pattern",
		`fileset("none", "*")`:         "no such file",
		`templatefile("bad.tmpl", {})`: "bad.tmpl:1",
		`templatefile("bad.tmpl", 1)`:  "must be a map",
		`rsadecrypt("x", "y")`:         "rsadecrypt",
		`convert("x", number)`:         "number is required",
		`yamldecode("a: [")`:           "on line",
	} {
		got, diags := evaluate(t, dir, expression)
		if !diags.HasErrors() || !strings.Contains(diags.Error(), want) {
			t.Errorf("%s: got %s, %v, want an error with %q", expression, got, diags, want)
		}
	}
}

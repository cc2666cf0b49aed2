package hcleval

import (
	"encoding/base64"
	"errors"
	"slices"
	"time"

	"github.com/hashicorp/go-cty-funcs/cidr"
	"github.com/hashicorp/go-cty-funcs/crypto"
	"github.com/hashicorp/go-cty-funcs/encoding"
	"github.com/hashicorp/go-cty-funcs/filesystem"
	"github.com/hashicorp/go-cty-funcs/uuid"
	"github.com/hashicorp/hcl/v2/ext/tryfunc"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	ctyyaml "github.com/zclconf/go-cty-yaml"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// table returns the function list of Nomad's HCL2 documentation. Functions of files read relative to dir.
func (e *Evaluator) table(dir string) map[string]function.Function {
	functions := map[string]function.Function{
		"abs":          stdlib.AbsoluteFunc,
		"abspath":      filesystem.AbsPathFunc,
		"base64decode": encoding.Base64DecodeFunc,
		"base64encode": encoding.Base64EncodeFunc,
		"basename":     filesystem.BasenameFunc,
		"bcrypt":       crypto.BcryptFunc,
		"can":          tryfunc.CanFunc,
		"ceil":         stdlib.CeilFunc,
		"chomp":        stdlib.ChompFunc,
		"chunklist":    stdlib.ChunklistFunc,
		"cidrhost":     cidr.HostFunc,
		"cidrnetmask":  cidr.NetmaskFunc,
		"cidrsubnet":   cidr.SubnetFunc,
		"cidrsubnets":  cidr.SubnetsFunc,
		"coalesce":     stdlib.CoalesceFunc,
		"coalescelist": stdlib.CoalesceListFunc,
		"compact":      stdlib.CompactFunc,
		"concat":       stdlib.ConcatFunc,
		"contains":     stdlib.ContainsFunc,
		"convert":      typeexpr.ConvertFunc,
		"csvdecode":    stdlib.CSVDecodeFunc,
		"dirname":      filesystem.DirnameFunc,
		"distinct":     stdlib.DistinctFunc,
		"element":      stdlib.ElementFunc,
		"file": pathFunc(cty.String, func(path string) (cty.Value, error) {
			s, err := readText(dir, path)
			return cty.StringVal(s), err
		}),
		"filebase64": pathFunc(cty.String, func(path string) (cty.Value, error) {
			data, err := readFrom(dir, path)
			return cty.StringVal(base64.StdEncoding.EncodeToString(data)), err
		}),
		"fileexists":      fileExistsFunc(dir),
		"fileset":         fileSetFunc(dir),
		"flatten":         stdlib.FlattenFunc,
		"floor":           stdlib.FloorFunc,
		"format":          stdlib.FormatFunc,
		"formatdate":      stdlib.FormatDateFunc,
		"formatlist":      stdlib.FormatListFunc,
		"indent":          stdlib.IndentFunc,
		"index":           stdlib.IndexFunc,
		"join":            stdlib.JoinFunc,
		"jsondecode":      stdlib.JSONDecodeFunc,
		"jsonencode":      stdlib.JSONEncodeFunc,
		"keys":            stdlib.KeysFunc,
		"length":          lengthFunc,
		"log":             stdlib.LogFunc,
		"lookup":          stdlib.LookupFunc,
		"lower":           stdlib.LowerFunc,
		"max":             stdlib.MaxFunc,
		"md5":             crypto.Md5Func,
		"merge":           stdlib.MergeFunc,
		"min":             stdlib.MinFunc,
		"parseint":        stdlib.ParseIntFunc,
		"pathexpand":      filesystem.PathExpandFunc,
		"pow":             stdlib.PowFunc,
		"range":           stdlib.RangeFunc, // refuses more than 1024 elements by itself
		"regex":           stdlib.RegexFunc,
		"regex_replace":   stdlib.RegexReplaceFunc,
		"regexall":        stdlib.RegexAllFunc,
		"replace":         stdlib.ReplaceFunc,
		"reverse":         stdlib.ReverseListFunc,
		"rsadecrypt":      crypto.RsaDecryptFunc,
		"setintersection": stdlib.SetIntersectionFunc,
		"setproduct":      stdlib.SetProductFunc,
		"setsubtract":     stdlib.SetSubtractFunc,
		"setunion":        stdlib.SetUnionFunc,
		"sha1":            crypto.Sha1Func,
		"sha256":          crypto.Sha256Func,
		"sha512":          crypto.Sha512Func,
		"signum":          stdlib.SignumFunc,
		"slice":           stdlib.SliceFunc,
		"sort":            stdlib.SortFunc,
		"split":           stdlib.SplitFunc,
		"strlen":          stdlib.StrlenFunc,
		"strrev":          stdlib.ReverseFunc,
		"substr":          stdlib.SubstrFunc,
		"templatefile":    e.templateFileFunc(dir),
		"timeadd":         stdlib.TimeAddFunc,
		"timestamp":       timestampFunc,
		"title":           stdlib.TitleFunc,
		"trim":            stdlib.TrimFunc,
		"trimprefix":      stdlib.TrimPrefixFunc,
		"trimspace":       stdlib.TrimSpaceFunc,
		"trimsuffix":      stdlib.TrimSuffixFunc,
		"try":             tryfunc.TryFunc,
		"upper":           stdlib.UpperFunc,
		"urlencode":       encoding.URLEncodeFunc,
		"uuidv4":          uuid.V4Func,
		"uuidv5":          uuid.V5Func,
		"values":          stdlib.ValuesFunc,
		"yamldecode":      ctyyaml.YAMLDecodeFunc,
		"yamlencode":      ctyyaml.YAMLEncodeFunc,
		"zipmap":          stdlib.ZipmapFunc,
	}
	for name, f := range functions {
		if name != "can" && name != "convert" && name != "try" { // they take expressions, and quote no values
			functions[name] = hiding(f)
		}
	}
	return functions
}

// errHidden replaces the error of a call whose arguments come from a file: many errors quote their arguments.
var errHidden = errors.New("it fails with what was read from a file, which this error does not show")

// hiding returns f with errors that never quote text that was read from a file.
func hiding(f function.Function) function.Function {
	params, rest := f.Params(), f.VarParam()
	for i := range params {
		params[i].AllowMarked = true
	}
	if rest != nil {
		rest.AllowMarked = true
	}
	visible := func(args []cty.Value, err error) error {
		if err != nil && slices.ContainsFunc(args, cty.Value.ContainsMarked) {
			return errHidden
		}
		return err
	}
	return function.New(&function.Spec{
		Params:   params,
		VarParam: rest,
		Type: func(args []cty.Value) (cty.Type, error) { // which decodes a text already
			ty, err := f.ReturnTypeForValues(args)
			return ty, visible(args, err)
		},
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			v, err := f.Call(args)
			return v, visible(args, err)
		},
	})
}

// lengthFunc counts the elements of a collection or an object, or the characters of a string, as documented.
var lengthFunc = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "value", Type: cty.DynamicPseudoType, AllowDynamicType: true}},
	Type: func(args []cty.Value) (cty.Type, error) {
		if ty := args[0].Type(); ty == cty.String || ty == cty.DynamicPseudoType || ty.IsObjectType() {
			return cty.Number, nil
		}
		return stdlib.LengthFunc.ReturnTypeForValues(args)
	},
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		switch ty := args[0].Type(); {
		case ty == cty.String:
			return stdlib.Strlen(args[0])
		case ty.IsObjectType():
			return cty.NumberIntVal(int64(len(ty.AttributeTypes()))), nil
		}
		return stdlib.Length(args[0])
	},
})

// timestampFunc returns the present time, in UTC, as RFC 3339 writes it.
var timestampFunc = function.New(&function.Spec{
	Type: function.StaticReturnType(cty.String),
	Impl: func([]cty.Value, cty.Type) (cty.Value, error) {
		return cty.StringVal(time.Now().UTC().Format(time.RFC3339)), nil
	},
})

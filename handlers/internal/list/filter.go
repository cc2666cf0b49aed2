package list

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/hashicorp/go-bexpr"
	"github.com/hashicorp/go-bexpr/grammar"
)

// The bounds of an expression.
const (
	// maxLength is ten times that of long expressions.
	maxLength = 2 << 10
	// maxParsed is the number of the parser's steps. It doubles with each parenthesis within another: some six levels
	// are read. This many take 15 ms and 9 MB.
	maxParsed = 300_000
	// maxRegexp is the number of instructions of all regular expressions together. Each has 40 bytes.
	maxRegexp = 10_000
	// maxSteps bounds the comparisons for one value, half a second's. "any TaskStates as _, s { s.Failed == true }"
	// takes 500 for each of 500 tasks.
	maxSteps = 1_000_000
	// maxAllSteps bounds those for all values of a list, five seconds'. 10,000 paths take 2,000,000 for
	// "^nomad/jobs/[a-z]+$".
	maxAllSteps = 10 * maxSteps
	// regexpsInAStep is how many instructions of a regular expression take as long as a comparison, for one byte of the
	// text.
	regexpsInAStep = 10
)

var (
	errTooManySteps = errors.New("it takes too many steps: " +
		"any and all within one another multiply, and so do a regular expression and a long text")
	errTooManyInAll = errors.New("it takes too many steps for so many values: " +
		"a prefix, or a page of fewer that match, has it read fewer")
	errNotApplied = errors.New("a selector leads to what has no value, or an operator can't be used on it")
)

// filter is an expression in the language of Nomad's ?filter=, as go-bexpr reads it:
// https://developer.hashicorp.com/nomad/api-docs#filtering. Every expression takes a bounded time and memory to read
// and to apply. A filter is for the values of one list, and its methods are for one goroutine at a time.
type filter struct {
	evaluator *bexpr.Evaluator
	compares  int // its comparisons
	regexps   int // the instructions of its regular expressions
	steps     int // of the value that is being matched
	all       int // of those before
}

// newFilter reads an expression. Its errors are for the author of the expression.
func newFilter(text string) (*filter, error) {
	if len(text) > maxLength {
		return nil, fmt.Errorf("it is longer than %d bytes", maxLength)
	}
	tree, err := grammar.Parse("", []byte(text), grammar.MaxExpressions(maxParsed))
	if err != nil {
		return nil, brief(err)
	}
	f := &filter{}
	if err := f.measure(tree.(grammar.Expression)); err != nil {
		return nil, err
	}
	f.evaluator, err = bexpr.CreateEvaluator(text, bexpr.WithMaxExpressions(maxParsed), bexpr.WithHookFn(f.step))
	return f, err
}

// measure counts the comparisons of an expression and the instructions of its regular expressions.
func (f *filter) measure(tree grammar.Expression) error {
	switch node := tree.(type) {
	case *grammar.UnaryExpression:
		return f.measure(node.Operand)
	case *grammar.BinaryExpression:
		if err := f.measure(node.Left); err != nil {
			return err
		}
		return f.measure(node.Right)
	case *grammar.CollectionExpression:
		return f.measure(node.Inner)
	case *grammar.MatchExpression:
		f.compares++
		if node.Operator == grammar.MatchMatches || node.Operator == grammar.MatchNotMatches {
			return f.addRegexp(node.Value.Raw)
		}
	}
	return nil
}

// matches reports whether the expression selects a value: a struct, a pointer to one or a map. Selectors are the names
// of Go's fields, which are Nomad's. Its errors are for the author of the expression.
func (f *filter) matches(value any) (matches bool, err error) {
	f.all += f.steps
	f.steps = 0
	defer func() { // go-bexpr panics when a selector leads to nil, and step when there are too many
		if cause := recover(); cause != nil {
			matches, err = false, errNotApplied
			if cause == errTooManySteps || cause == errTooManyInAll { //nolint:errorlint // it is step's, as it is
				err = cause.(error)
			}
		}
	}()
	matches, err = f.evaluator.Evaluate(value)
	return matches, brief(err)
}

// step is called with each value on the way of a selector. It counts the steps, including the elements of a collection,
// which are compared without another call. For a nil pointer it returns the zero value, as in Nomad, where the field is
// no pointer.
func (f *filter) step(v reflect.Value) reflect.Value {
	if v.Kind() == reflect.Pointer && v.IsNil() && scalar(v.Type().Elem().Kind()) {
		v = reflect.Zero(v.Type().Elem())
	}
	f.steps++
	switch at := reflect.Indirect(v); at.Kind() {
	case reflect.Map, reflect.Slice:
		f.steps += at.Len() * f.compares
	case reflect.String:
		f.steps += at.Len() * f.regexps / regexpsInAStep
	}
	switch {
	case f.steps > maxSteps:
		panic(errTooManySteps)
	case f.all+f.steps > maxAllSteps:
		panic(errTooManyInAll)
	}
	return v
}

func scalar(k reflect.Kind) bool {
	return k == reflect.String || reflect.Bool <= k && k <= reflect.Float64
}

// maxWords bounds an error: the parser's errors list everything that may stand at a position.
const maxWords = 300

// brief returns an error with at most maxWords bytes; nil stays nil.
func brief(err error) error {
	if err == nil || len(err.Error()) <= maxWords {
		return err
	}
	return errors.New(err.Error()[:maxWords] + "...")
}

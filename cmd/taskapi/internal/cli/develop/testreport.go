package develop

import (
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/start"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/cmd/taskapi/internal/output"
)

// report is the content of --json and --junit. A task's end may be recorded while a phase is recorded.
type report struct {
	AllocID  string    `json:"alloc_id"`
	JobID    string    `json:"job_id"`
	Group    string    `json:"group"`
	Command  []string  `json:"command"`
	As       string    `json:"as"`
	ExitCode int       `json:"exit_code"` // of taskapi
	Error    string    `json:"error,omitempty"`
	Seconds  float64   `json:"seconds"`
	Phases   []phase   `json:"phases"`
	Tasks    []taskEnd `json:"tasks"`

	begun time.Time
}

// phase is one step of the test.
type phase struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"`
}

// taskEnd is how a task has ended.
type taskEnd struct {
	Name     string   `json:"name"`
	State    string   `json:"state"`
	Failed   bool     `json:"failed"`
	Error    string   `json:"error,omitempty"` // why its latest attempt to start has failed
	Restarts uint64   `json:"restarts"`
	ExitCode *int     `json:"exit_code,omitempty"` // of its last process, 128 and the number of a signal
	Stderr   []string `json:"stderr,omitempty"`    // its last lines
}

func (r *report) phase(name string, do func() error) error {
	since := time.Now()
	err := do()
	p := phase{Name: name, Seconds: time.Since(since).Seconds()}
	if err != nil {
		p.Error = err.Error()
	}
	r.Phases = append(r.Phases, p)
	return err
}

func (r *report) task(name string, state *api.TaskState, stderr []string) {
	end := taskEnd{Name: name, Stderr: stderr}
	if state != nil {
		end.State, end.Failed, end.Restarts = state.State, state.Failed, state.Restarts
		if failure := start.FailedStart(state); failure != nil {
			end.Error = linewriter.OneLine(failure.DisplayMessage)
		}
		if e := base.LastEvent(state, api.TaskTerminated); e != nil {
			end.ExitCode = new(base.TaskExitCode(e))
		}
	}
	r.Tasks = append(r.Tasks, end)
}

// write records the outcome, and writes the reports that the flags name.
func (r *report) write(o testOptions, w base.Environment, result error) error {
	r.Seconds, r.ExitCode = time.Since(r.begun).Seconds(), base.ExitCode(base.Own(result))
	if result != nil && !base.IsSilent(result) {
		r.Error = result.Error()
	}
	var errs []error
	if o.JSON {
		errs = append(errs, output.JSON(w.Stdout, r))
	}
	if o.JUnit != "" {
		text, err := xml.MarshalIndent(r.suite(), "", "  ")
		if err == nil {
			err = os.WriteFile(o.JUnit, append([]byte(xml.Header), append(text, '\n')...), 0o644)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("--junit: %w", err))
		}
	}
	return errors.Join(errs...)
}

// junitSuite and junitCase are JUnit's elements.
type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Time     string      `xml:"time,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string        `xml:"classname,attr"`
	Name    string        `xml:"name,attr"`
	Time    string        `xml:"time,attr,omitempty"`
	Failure *junitFailure `xml:"failure"`
	Stderr  string        `xml:"system-err,omitempty"`
}

type junitFailure struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// suite returns the report as JUnit has it: a case for each phase and each task.
func (r *report) suite() junitSuite {
	s := junitSuite{Name: r.JobID + "." + r.Group, Time: seconds(r.Seconds)}
	add := func(name, took, failure, stderr string) {
		c := junitCase{Class: s.Name, Name: name, Time: took, Stderr: stderr}
		if failure != "" {
			first, _, _ := strings.Cut(failure, "\n")
			c.Failure = &junitFailure{first, failure}
			s.Failures++
		}
		s.Cases = append(s.Cases, c)
		s.Tests++
	}
	for _, p := range r.Phases {
		name := p.Name
		if name == phaseCommand {
			name += ": " + strings.Join(r.Command, " ")
		}
		add(name, seconds(p.Seconds), p.Error, "")
	}
	for _, t := range r.Tasks {
		failure := ""
		if t.Failed {
			failure = "the task has failed"
			switch {
			case t.Error != "":
				failure += ": " + t.Error
			case t.ExitCode != nil:
				failure += fmt.Sprintf(": exit code %d", *t.ExitCode)
			}
		}
		add("task "+t.Name, "", failure, strings.Join(t.Stderr, "\n"))
	}
	return s
}

func seconds(s float64) string { return strconv.FormatFloat(s, 'f', 3, 64) }

// The phases of a test, in order; the first says of the group what is waited for.
const (
	phaseCommand = "command"
	phaseStop    = "group stops"
)

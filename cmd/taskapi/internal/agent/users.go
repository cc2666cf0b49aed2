package agent

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/jobspec/review"
	"taskapi/auth"
)

// FormatIDRange returns a range in the form of Settings.IsolateUsers.
func FormatIDRange(r interfaces.IDRange) string { return fmt.Sprintf("%d-%d", r.From, r.To) }

// CheckIsolate refuses a wrong range of user numbers.
func (s Settings) CheckIsolate() error {
	_, err := s.idRange()
	return err
}

// idRange returns the range of IsolateUsers; zero for none.
func (s Settings) idRange() (interfaces.IDRange, error) {
	if s.IsolateUsers == "" {
		return interfaces.IDRange{}, nil
	}
	first, last, _ := strings.Cut(s.IsolateUsers, "-")
	from, err1 := strconv.ParseUint(first, 10, 32)
	to, err2 := strconv.ParseUint(last, 10, 32)
	if errors.Join(err1, err2) != nil || from == 0 || to < from || to >= 1<<32-1 {
		return interfaces.IDRange{}, fmt.Errorf("%q is no range of user numbers: give one like %s, without root's 0",
			s.IsolateUsers, FormatIDRange(allocrunner.DefaultIDRange))
	}
	return interfaces.IDRange{From: uint32(from), To: uint32(to)}, nil
}

// CheckOwnUser warns of tasks that run as this program's user. With isolated, tasks without a user have users of their
// own.
func CheckOwnUser(group *api.TaskGroup, isolated bool) []review.Finding {
	var names []string
	for _, name := range allocrunner.OwnUserTasks(group, isolated) {
		names = append(names, strconv.Quote(name))
	}
	if len(names) == 0 {
		return nil
	}
	remedy := "give each a user, or run with --isolate-users"
	if isolated {
		remedy = "name another user, or leave user out"
	}
	if os.Geteuid() != 0 {
		remedy = "only root can run tasks as other users"
	}
	return []review.Finding{{
		Severity: review.Warning, Where: fmt.Sprintf("group %q", *group.Name), Feature: "user",
		Message: fmt.Sprintf("as taskapi's own user (uid %d), %s can read the operator's token, the key ring and each "+
			"other's tokens; %s", os.Geteuid(), strings.Join(names, ", "), remedy),
	}}
}

// CheckUsers returns an error for settings that can't protect the group's tasks from each other as the settings say.
func (s Settings) CheckUsers(group *api.TaskGroup) error {
	isolated := s.IsolateUsers != ""
	if isolated && os.Geteuid() != 0 {
		return fmt.Errorf("isolate_users is for root alone, and taskapi runs as uid %d: run it as root, or leave that out",
			os.Geteuid())
	}
	if !s.policyCanBeBypassed() {
		return nil
	}
	for _, f := range CheckOwnUser(group, isolated) {
		return fmt.Errorf("a policy keeps nothing from tasks that can take the operator's token: %s: %s. "+
			"The setting allow_shared_user takes the policy all the same", f.Where, f.Message)
	}
	return nil
}

// CheckAgentUsers returns an error for a policy that tasks of the agent's jobs could bypass, before there is a job.
func (s Settings) CheckAgentUsers() error {
	if s.IsolateUsers != "" || !s.policyCanBeBypassed() {
		return nil
	}
	return errors.New("a policy keeps nothing from tasks that run as taskapi's own user and can take the operator's " +
		"token: start the agent as root with --isolate-users. The setting allow_shared_user takes the policy all the same")
}

// policyCanBeBypassed reports whether a policy was chosen that tasks of this program's user can bypass. The preset
// "local" is the default and promises nothing. An ordinary user, who can't run tasks as other users, may try a job
// under the other preset.
func (s Settings) policyCanBeBypassed() bool {
	_, preset := auth.Preset(s.Policy)
	switch {
	case s.Policy == "", s.AllowSharedUser:
		return false
	case preset:
		return s.Policy != "local" && os.Geteuid() == 0
	}
	return true
}

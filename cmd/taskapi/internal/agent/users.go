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
	if _, preset := auth.Preset(s.Policy); preset || s.Policy == "" || s.AllowSharedUser {
		return nil // a preset protects nothing from these tasks, of which CheckOwnUser warns
	}
	for _, f := range CheckOwnUser(group, isolated) {
		return fmt.Errorf("a policy keeps nothing from tasks that can take the operator's token: %s: %s. "+
			"The setting allow_shared_user takes the policy all the same", f.Where, f.Message)
	}
	return nil
}

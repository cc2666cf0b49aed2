package keeper

import (
	"context"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/internal/proctree"
)

// View returns what a caller needs to look at the tasks' processes from this process, and the latest process of each
// task. Errors: List's.
func (s *Supervisor) View(ctx context.Context) (proctree.View, []drivers.ProcessStatus, error) {
	list, err := s.List(ctx)
	if err != nil {
		return proctree.View{}, nil, err
	}
	conn, _ := s.current()
	conn.client.mu.Lock()
	view := proctree.View{Supervisor: conn.client.id.PID, Cgroup: conn.client.cgroup}
	conn.client.mu.Unlock()
	for _, status := range list {
		if status.Exit == nil {
			view.Roots = append(view.Roots, proctree.ViewRoot{
				Task: status.Task, PID: status.PID, Start: status.Start, Fenced: status.NoCgroup == "",
				Marker: "NOMAD_TASK_NAME=" + status.Task,
			})
		}
	}
	return view, list, nil
}

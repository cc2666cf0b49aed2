package variables

import (
	"bytes"
	"context"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
)

// Change is a new, a changed or a removed variable, without its items.
type Change = cluster.Change[*api.VariableMetadata]

// Feed keeps the latest changes of the variables of all namespaces.
type Feed = cluster.Feed[*api.VariableMetadata]

// Feed returns the feed of changes. It follows them only while somebody reads, and remembers the metadata of all
// variables from the first Read on. The end of a lock is a change, which it writes, as Await does.
func (s *Service) Feed() *Feed { return s.feed() }

func (s *Service) newFeed() *Feed {
	return cluster.NewFeed(context.Background(), s.store, cluster.FeedConfig[*api.VariableMetadata]{
		Prefix: variablePrefix, Decode: metadataIn, Head: maxHeader, Keep: headerIn, Lazy: true, Watch: s.watch,
	})
}

// watch waits until a variable is changed or deleted after an index. It ends locks meanwhile.
func (s *Service) watch(ctx context.Context, after uint64) (cluster.Changes, error) {
	for {
		next, err := s.endLocks(ctx, AllNamespaces, "", Everything)
		if err != nil {
			return cluster.Changes{}, err
		}
		look, stop := context.WithTimeout(ctx, next)
		changes, err := s.store.Watch(look, variablePrefix, after)
		over := look.Err() != nil
		stop()
		if err == nil || !over || ctx.Err() != nil {
			return changes, err
		}
	}
}

// headerIn returns a copy of the header in the head of a record, with its end.
func headerIn(head []byte) []byte { return bytes.Clone(head[:bytes.IndexByte(head, '\n')+1]) }

// metadataIn returns the metadata in an entry. A lock is held in a version that has one: its end is another version.
func metadataIn(entry cluster.Entry) *api.VariableMetadata {
	at, _ := placeIn(variablePrefix, entry.Key)
	found := newState(at, entry)
	if found.Lock != nil {
		found.phase = held
	}
	return metadataOf(found.variable(nil))
}

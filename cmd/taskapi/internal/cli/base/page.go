package base

import (
	"net/url"
	"strconv"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

// PageFlags say which part of a list is printed.
type PageFlags struct {
	filter  string
	PerPage int32
	token   string
}

func (f *PageFlags) Add(cmd *cobra.Command, example string) {
	cmd.Flags().StringVar(&f.filter, "filter", "", "print those alone that this `EXPRESSION` selects, e.g. '"+example+"'")
	cmd.Flags().Int32Var(&f.PerPage, "per-page", 0, "print this `NUMBER` at most, 0 for all; what prints the next page is on standard error")
	cmd.Flags().StringVar(&f.token, "page-token", "", "where the page begins: the `TOKEN` that the one before it has given")
}

// Options returns a query of the API.
func (f *PageFlags) Options(namespace string) *api.QueryOptions {
	return &api.QueryOptions{Namespace: namespace, Filter: f.filter, PerPage: f.PerPage, NextToken: f.token}
}

// ValuesOf returns the part of a query of the API that selects a page.
func ValuesOf(o *api.QueryOptions) url.Values {
	query := url.Values{"filter": {o.Filter}, "next_token": {o.NextToken}}
	if o.PerPage != 0 {
		query.Set("per_page", strconv.Itoa(int(o.PerPage)))
	}
	return query
}

// SayNext says how to print what follows a page, if anything does.
func SayNext(w Environment, next string) {
	if next != "" {
		w.Warnf("there is more: --page-token %s prints the next page", ShellWord(next))
	}
}

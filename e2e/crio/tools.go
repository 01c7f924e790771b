//go:build tools

// Package crio pins the version of CRI-O, and of everything it is built from, that the scenarios run against.
package crio

import _ "github.com/cri-o/cri-o/cmd/crio"

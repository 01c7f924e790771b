// Package critools names what critest consists of, so that go.sum has its modules: critest is a test without a package of its own,
// which a tool line in go.mod cannot name.
package critools

import (
	_ "github.com/onsi/ginkgo/v2"
	_ "github.com/onsi/gomega"
	_ "sigs.k8s.io/cri-tools/pkg/benchmark"
	_ "sigs.k8s.io/cri-tools/pkg/framework"
	_ "sigs.k8s.io/cri-tools/pkg/validate"
)

// Drives a sidecar with Pulsar's own admin library, the one that pulsarctl is made of.
//
// It prints one line for each step, "ok STEP" or "failed STEP: WHY", and exits with 1 if any
// failed. Steps build on one another: the first failure of a group ends that group.
package main

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin/config"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/rest"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
)

const (
	namespace = "acme/orders"
	wait      = 30 * time.Second
)

type driver struct {
	admin   admin.Client
	cluster string
	failed  bool
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: admindriver URL CLUSTER")
		os.Exit(2)
	}
	client, err := admin.New(&config.Config{WebServiceURL: os.Args[1]})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	d := &driver{admin: client, cluster: os.Args[2]}
	for _, group := range []func() bool{
		d.brokers, d.namespaces, d.bundles, d.isolation, d.domains, d.antiAffinity,
		d.dynamicConfiguration, d.quotas, d.partitions, d.refusals, d.removal,
	} {
		group()
	}
	if d.failed {
		os.Exit(1)
	}
}

// step prints what came of one step and returns whether it went well.
func (d *driver) step(name string, do func() error) bool {
	if err := do(); err != nil {
		fmt.Printf("failed %s: %v\n", name, err)
		d.failed = true
		return false
	}
	fmt.Printf("ok %s\n", name)
	return true
}

func (d *driver) brokers() bool {
	brokers := d.admin.Brokers()
	return d.step("brokers list", func() error {
		active, err := brokers.GetActiveBrokers(d.cluster)
		return expect(err, len(active) > 1, "more than one broker", active)
	}) && d.step("brokers leader", func() error {
		leader, err := brokers.GetLeaderBroker()
		return expect(err, leader.BrokerID != "" || leader.ServiceURL != "", "a leader", leader)
	}) && d.step("brokers healthcheck", func() error {
		return brokers.HealthCheckWithTopicVersion(utils.TopicVersionV2)
	}) && d.step("broker-stats load-report", func() error {
		return eventually(func() error {
			// The first report is written before anything could be measured.
			report, err := d.admin.BrokerStats().GetLoadReport()
			return expect(err, report != nil && report.CPU.Limit > 0, "a CPU limit", report)
		})
	})
}

func (d *driver) namespaces() bool {
	namespaces := d.admin.Namespaces()
	return d.step("namespaces create", func() error {
		return namespaces.CreateNsWithNumBundles(namespace, 4)
	}) && d.step("namespaces list", func() error {
		found, err := namespaces.GetNamespaces("acme")
		return expect(err, slices.Equal(found, []string{namespace}), "only "+namespace, found)
	}) && d.step("namespaces policies", func() error {
		policies, err := namespaces.GetPolicies(namespace)
		return expect(err, policies != nil && policies.Bundles != nil && policies.Bundles.NumBundles == 4,
			"four bundles", policies)
	})
}

func (d *driver) bundles() bool {
	namespaces := d.admin.Namespaces()
	topic, err := utils.GetTopicName("persistent://" + namespace + "/payments")
	if err != nil {
		return d.step("topics name", func() error { return err })
	}
	var bundle string
	return d.step("topics lookup", func() error {
		found, err := d.admin.Topics().Lookup(*topic)
		return expect(err, strings.HasPrefix(found.BrokerURL, "pulsar://") || found.HTTPURL != "",
			"an owner", found)
	}) && d.step("topics bundle-range", func() error {
		bundle, err = d.admin.Topics().GetBundleRange(*topic)
		return expect(err, strings.HasPrefix(bundle, "0x"), "a range", bundle)
	}) && d.step("namespaces unload bundle", func() error {
		return namespaces.UnloadNamespaceBundle(namespace, bundle)
	}) && d.step("namespaces unload", func() error {
		return namespaces.Unload(namespace)
	}) && d.step("namespaces split-bundle", func() error {
		return eventually(func() error {
			// A bundle that is under way is refused for a moment.
			return namespaces.SplitNamespaceBundle(namespace, bundle, false)
		})
	}) && d.step("namespaces policies after the split", func() error {
		return eventually(func() error {
			policies, err := namespaces.GetPolicies(namespace)
			return expect(err, policies != nil && policies.Bundles.NumBundles == 5, "five bundles", policies)
		})
	})
}

func (d *driver) isolation() bool {
	policies := d.admin.NsIsolationPolicy()
	wanted := utils.NamespaceIsolationData{
		Namespaces: []string{"acme/.*"},
		Primary:    []string{"127.*"},
		Secondary:  []string{"localhost.*"},
		AutoFailoverPolicy: utils.AutoFailoverPolicyData{
			PolicyType: utils.MinAvailable,
			Parameters: map[string]string{"min_limit": "1", "usage_threshold": "80"},
		},
	}
	return d.step("ns-isolation-policy set", func() error {
		return policies.CreateNamespaceIsolationPolicy(d.cluster, "acme", wanted)
	}) && d.step("ns-isolation-policy get", func() error {
		found, err := policies.GetNamespaceIsolationPolicy(d.cluster, "acme")
		return expect(err, found != nil && reflect.DeepEqual(*found, wanted), "what was set", found)
	}) && d.step("ns-isolation-policy list", func() error {
		found, err := policies.GetNamespaceIsolationPolicies(d.cluster)
		return expect(err, len(found) == 1 && reflect.DeepEqual(found["acme"], wanted), "one policy", found)
	}) && d.step("ns-isolation-policy brokers", func() error {
		found, err := policies.GetBrokersWithNamespaceIsolationPolicy(d.cluster)
		return expect(err, len(found) > 1, "all brokers", found)
	}) && d.step("ns-isolation-policy delete", func() error {
		return policies.DeleteNamespaceIsolationPolicy(d.cluster, "acme")
	}) && d.step("ns-isolation-policy get what was deleted", func() error {
		_, err := policies.GetNamespaceIsolationPolicy(d.cluster, "acme")
		return expectCode(err, 404)
	})
}

func (d *driver) domains() bool {
	clusters := d.admin.Clusters()
	domain := utils.FailureDomainData{
		ClusterName: d.cluster, DomainName: "rack1", BrokerList: []string{"127.0.0.1:1"},
	}
	return d.step("clusters create-failure-domain", func() error {
		return clusters.CreateFailureDomain(domain)
	}) && d.step("clusters get-failure-domain", func() error {
		found, err := clusters.GetFailureDomain(d.cluster, "rack1")
		return expect(err, slices.Equal(found.BrokerList, domain.BrokerList), "its brokers", found)
	}) && d.step("clusters update-failure-domain", func() error {
		domain.BrokerList = []string{"127.0.0.1:1", "127.0.0.1:2"}
		return clusters.UpdateFailureDomain(domain)
	}) && d.step("clusters list-failure-domains", func() error {
		found, err := clusters.ListFailureDomains(d.cluster)
		return expect(err, len(found["rack1"].BrokerList) == 2, "two brokers", found)
	}) && d.step("clusters delete-failure-domain", func() error {
		return clusters.DeleteFailureDomain(domain)
	})
}

func (d *driver) antiAffinity() bool {
	namespaces := d.admin.Namespaces()
	return d.step("namespaces set-anti-affinity-group", func() error {
		return namespaces.SetNamespaceAntiAffinityGroup(namespace, "apart")
	}) && d.step("namespaces get-anti-affinity-group", func() error {
		found, err := namespaces.GetNamespaceAntiAffinityGroup(namespace)
		return expect(err, strings.Trim(found, `"`) == "apart", "apart", found)
	}) && d.step("namespaces get-anti-affinity-namespaces", func() error {
		found, err := namespaces.GetAntiAffinityNamespaces("acme", d.cluster, "apart")
		return expect(err, slices.Equal(found, []string{namespace}), "only "+namespace, found)
	}) && d.step("namespaces delete-anti-affinity-group", func() error {
		return namespaces.DeleteNamespaceAntiAffinityGroup(namespace)
	})
}

func (d *driver) dynamicConfiguration() bool {
	brokers := d.admin.Brokers()
	const key = "loadBalancerSheddingIntervalMinutes"
	return d.step("brokers list-dynamic-config", func() error {
		names, err := brokers.GetDynamicConfigurationNames()
		return expect(err, slices.Contains(names, key), key, names)
	}) && d.step("brokers update-dynamic-config", func() error {
		return brokers.UpdateDynamicConfiguration(key, "3")
	}) && d.step("brokers get-all-dynamic-config", func() error {
		return eventually(func() error {
			values, err := brokers.GetAllDynamicConfigurations()
			return expect(err, values[key] == "3", "the value 3", values)
		})
	}) && d.step("brokers get-runtime-config", func() error {
		values, err := brokers.GetRuntimeConfigurations()
		return expect(err, len(values) > 0, "values", values)
	}) && d.step("brokers delete-dynamic-config", func() error {
		return brokers.DeleteDynamicConfiguration(key)
	}) && d.step("brokers update-dynamic-config of what is not dynamic", func() error {
		return expectCode(brokers.UpdateDynamicConfiguration("zookeeperServers", "elsewhere"), 412)
	})
}

func (d *driver) quotas() bool {
	quotas := d.admin.ResourceQuotas()
	return d.step("resource-quotas set", func() error {
		return expectCode(quotas.SetDefaultResourceQuota(utils.ResourceQuota{Memory: 5}), 410)
	}) && d.step("resource-quotas get", func() error {
		_, err := quotas.GetDefaultResourceQuota()
		return expectCode(err, 410)
	})
}

func (d *driver) partitions() bool {
	topic, err := utils.GetTopicName("persistent://" + namespace + "/split-up")
	if err != nil {
		return d.step("topics name", func() error { return err })
	}
	return d.step("topics create", func() error {
		return d.admin.Topics().Create(*topic, 3)
	}) && d.step("topics get-partitioned-topic-metadata", func() error {
		found, err := d.admin.Topics().GetMetadata(*topic)
		return expect(err, found.Partitions == 3, "three partitions", found)
	})
}

func (d *driver) refusals() bool {
	namespaces := d.admin.Namespaces()
	return d.step("namespaces create what exists", func() error {
		return expectCode(namespaces.CreateNsWithNumBundles(namespace, 4), 409)
	}) && d.step("namespaces policies of none", func() error {
		_, err := namespaces.GetPolicies("acme/none")
		return expectCode(err, 404)
	}) && d.step("namespaces unload of none", func() error {
		return expectCode(namespaces.Unload("acme/none"), 404)
	})
}

func (d *driver) removal() bool {
	namespaces := d.admin.Namespaces()
	const spare = "acme/spare"
	return d.step("namespaces create another", func() error {
		return namespaces.CreateNsWithNumBundles(spare, 2)
	}) && d.step("namespaces delete", func() error {
		return namespaces.DeleteNamespace(spare)
	}) && d.step("namespaces list after it", func() error {
		return eventually(func() error {
			found, err := namespaces.GetNamespaces("acme")
			return expect(err, slices.Equal(found, []string{namespace}), "only "+namespace, found)
		})
	})
}

func expect(err error, holds bool, wanted string, found any) error {
	if err != nil {
		return err
	}
	if !holds {
		return fmt.Errorf("expected %s, found %+v", wanted, found)
	}
	return nil
}

func expectCode(err error, code int) error {
	if err == nil {
		return fmt.Errorf("expected status %d, it went well", code)
	}
	if refused, ok := err.(rest.Error); !ok || refused.Code != code || refused.Reason == "" {
		return fmt.Errorf("expected status %d with a reason, found %v", code, err)
	}
	return nil
}

// eventually tries again until it goes well or the time is up.
func eventually(try func() error) error {
	deadline := time.Now().Add(wait)
	for {
		err := try()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(200 * time.Millisecond)
	}
}

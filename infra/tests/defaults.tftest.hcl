# What is made when only what must be said is said: one project, no keys, no streams, nothing that costs money by itself.

mock_provider "google" {
  override_resource {
    target = module.network.google_compute_subnetwork.made
    values = { id = "SUBNETWORK" }
  }
  override_resource {
    target = module.accounts.google_service_account.nodes
    values = { email = "nodes@x" }
  }
}

variables {
  project_id = "my-project"
  region     = "europe-west4"
  operators  = ["group:ml@example.com", "user:me@example.com"]
}

run "defaults" {
  command = plan

  assert {
    condition = jsonencode(sort([for each in values(module.apis.made.project_service_enabled) : "${each.project} ${each.service} ${each.disable_on_destroy}"])) == jsonencode([
      for api in [
        "alloydb", "artifactregistry", "bigquery", "cloudbuild", "cloudquotas", "cloudresourcemanager", "composer", "compute", "container",
        "containerfilesystem", "iam", "iamcredentials", "logging", "monitoring", "pubsub", "servicenetworking", "storage",
      ] : "my-project ${api}.googleapis.com false"
    ])
    error_message = "The APIs of the path by hand, once in one project, and left on when this is destroyed."
  }
  assert {
    condition = jsonencode([
      length(module.network.made.compute_network_made), length(module.network.made.compute_router_nat_made),
      length(module.network.made.compute_global_address_service_access), length(module.network.made.service_networking_connection_service_access),
      length(module.network.made.compute_subnetwork_iam_member_shared), length(module.network.made.project_iam_member_shared),
      length(module.alloydb), length(module.budget), length(module.keys.made.kms_crypto_key_iam_member_agents),
      length(module.cluster.made.compute_reservation_made), length(module.cluster.made.container_node_pool_accelerators),
      length(module.pubsub.made.pubsub_topic_messages), length(module.identities.made.project_iam_member_adapter),
      length(module.identities.made.project_iam_member_database), length(module.identities.made.service_account_iam_member_database),
      length(module.identities.made.storage_bucket_iam_member_jobs_read),
    ]) == jsonencode([1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    error_message = "A network with NAT, and nothing that was not asked for."
  }
  assert {
    condition = jsonencode([
      module.storage.made.storage_bucket_runs.name, module.storage.made.storage_bucket_runs.force_destroy,
      module.storage.made.storage_bucket_runs.encryption, module.storage.made.storage_bucket_runs.lifecycle_rule[0].condition[*].age,
      module.composer.made.storage_bucket_airflow.name, module.composer.made.storage_bucket_airflow.force_destroy, module.composer.made.storage_bucket_airflow.encryption,
      module.composer.made.composer_environment_this.name, module.composer.made.composer_environment_this.config[0].encryption_config,
      module.composer.made.composer_environment_this.config[0].enable_private_environment,
      lookup(module.composer.made.composer_environment_this.config[0].software_config[0].env_variables, "NIGHTSHIFT_RESERVATIONS", "none"),
      ]) == jsonencode([
      "my-project-nightshift", false, [], [90],
      "my-project-nightshift-airflow", false, [],
      "nightshift", [], false, "none",
    ])
    error_message = "Names come from the project, nothing that holds data is destroyed, and Google's own keys encrypt."
  }
  assert {
    condition = jsonencode({
      for name, each in module.storage.made.bigquery_dataset_each : name => [each.default_encryption_configuration, each.delete_contents_on_destroy]
    }) == jsonencode({ catalog = [[], false], nightshift = [[], false], predictions = [[], false] })
    error_message = "The datasets of the example, and ours."
  }
  assert {
    condition = jsonencode([
      module.cluster.made.container_cluster_this.project, module.cluster.made.container_cluster_this.name,
      module.cluster.made.container_cluster_this.deletion_protection, module.cluster.made.container_cluster_this.node_locations,
      module.cluster.made.container_cluster_this.database_encryption, module.cluster.made.container_cluster_this.cluster_autoscaling,
      module.cluster.made.container_cluster_this.maintenance_policy[0].maintenance_exclusion,
      module.cluster.made.container_cluster_this.subnetwork,
      module.cluster.made.container_node_pool_default[0].autoscaling[0].total_max_node_count,
      module.cluster.made.container_cluster_this.resource_labels,
    ]) == jsonencode(["my-project", "nightshift", true, [], [], [], [], "SUBNETWORK", 12, { app = "nightshift", deployment = "nightshift" }])
    error_message = "A protected Standard cluster in the default zones."
  }
  assert {
    condition     = jsonencode([for each in module.registry.made : each.remote_repository_config[*].upstream_credentials]) == jsonencode([[[]], [], [], [[]], []])
    error_message = "Docker Hub is asked as a stranger."
  }
  assert {
    condition = jsonencode(sort([for name, each in module.identities.made.service_account_iam_member_operators : "${name} ${each.role} ${each.member}"])) == jsonencode(sort([
      for pair in setproduct(["nodes", "airflow"], var.operators) : "${pair[0]}/${pair[1]} roles/iam.serviceAccountUser ${pair[1]}"
    ]))
    error_message = "Each operator may act as each account."
  }
  assert {
    condition     = output.database == null && output.airflow == module.composer.web && endswith(output.shell, "\ngcloud container clusters get-credentials nightshift --project=my-project --location=europe-west4 --dns-endpoint")
    error_message = "No database, and the cluster in the one project."
  }
}

run "autopilot" {
  command = plan

  variables {
    autopilot = true
    kms_key   = "projects/my-keys/locations/europe-west4/keyRings/data/cryptoKeys/night"
  }

  assert {
    condition = jsonencode([
      module.cluster.made.container_cluster_this.enable_autopilot, module.cluster.made.container_cluster_this.remove_default_node_pool,
      module.cluster.made.container_cluster_this.initial_node_count, module.cluster.made.container_cluster_this.node_config,
      module.cluster.made.container_cluster_this.node_pool_defaults, module.cluster.made.container_cluster_this.addons_config[0].gce_persistent_disk_csi_driver_config,
      [
        for each in module.cluster.made.container_cluster_this.cluster_autoscaling :
        [each.auto_provisioning_defaults[0].service_account, each.auto_provisioning_defaults[0].boot_disk_kms_key]
      ],
      length(module.cluster.made.container_node_pool_default),
      module.cluster.made.container_cluster_this.private_cluster_config[0].enable_private_nodes,
    ]) == jsonencode([true, null, null, [], [], [], [["nodes@x", var.kms_key]], 0, true])
    error_message = "Autopilot has no pools of ours; its nodes are private, run as our account and use the key."
  }
}

run "shared_network" {
  command = plan

  variables {
    shared_network = {
      host_project = "net", network = "vpc", subnetwork = "gpus", pods_range = "gke-pods", services_range = "gke-services"
    }
  }
  override_module {
    target = module.apis
    outputs = {
      project         = "my-project"
      cluster_project = "my-project"
      number          = "111"
      cluster_number  = "222"
      made            = {}
    }
  }

  assert {
    condition = jsonencode([
      length(module.network.made.compute_network_made), length(module.network.made.compute_subnetwork_made), length(module.network.made.compute_router_made),
      length(module.network.made.compute_router_nat_made), length(module.network.made.compute_firewall_webhooks),
      module.cluster.made.container_cluster_this.network, module.cluster.made.container_cluster_this.subnetwork,
      module.cluster.made.container_cluster_this.ip_allocation_policy[0].cluster_secondary_range_name,
      module.cluster.made.container_cluster_this.ip_allocation_policy[0].services_secondary_range_name,
      ]) == jsonencode([
      0, 0, 0, 0, 0, "projects/net/global/networks/vpc", "projects/net/regions/europe-west4/subnetworks/gpus", "gke-pods", "gke-services",
    ])
    error_message = "A shared network is used, and nothing is made in it."
  }
  assert {
    condition = jsonencode(sort(concat(
      [for each in values(module.network.made.compute_subnetwork_iam_member_shared) : "${each.project} ${each.region} ${each.subnetwork} ${each.role} ${each.member}"],
      [for each in module.network.made.project_iam_member_shared : "${each.project} ${each.role} ${each.member}"],
      ))) == jsonencode([
      "net europe-west4 gpus roles/compute.networkUser serviceAccount:222@cloudservices.gserviceaccount.com",
      "net europe-west4 gpus roles/compute.networkUser serviceAccount:service-222@container-engine-robot.iam.gserviceaccount.com",
      "net roles/container.hostServiceAgentUser serviceAccount:service-222@container-engine-robot.iam.gserviceaccount.com",
    ])
    error_message = "GKE's agents may use the host project's subnetwork."
  }
}

run "without_nat" {
  command = plan

  variables {
    nat = false
  }

  assert {
    condition     = length(module.network.made.compute_network_made) == 1 && length(module.network.made.compute_router_made) == 0 && length(module.network.made.compute_router_nat_made) == 0
    error_message = "Without NAT there is no way to the internet."
  }
}

run "two_projects" {
  command = plan

  variables {
    cluster_project_id = "my-gpus"
  }

  assert {
    condition = jsonencode([
      module.apis.made.project_airflow.project_id, module.apis.made.project_cluster.project_id,
      sort(distinct([for each in values(module.apis.made.project_service_enabled) : each.project])), length(module.apis.made.project_service_enabled),
    ]) == jsonencode(["my-project", "my-gpus", ["my-gpus", "my-project"], 2 * 17])
    error_message = "Each project's number is its own, and both have the APIs."
  }
}

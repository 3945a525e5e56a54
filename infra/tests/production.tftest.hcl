# Everything switched on, in two projects. Nothing is asked of Google: the provider is a mock, and what it would compute is said here.

mock_provider "google" {
  override_resource {
    target = module.accounts.google_service_account.nodes
    values = { email = "nodes@x", name = "NODES", member = "serviceAccount:nodes@x" }
  }
  override_resource {
    target = module.accounts.google_service_account.airflow
    values = { email = "airflow@x", name = "AIRFLOW", member = "serviceAccount:airflow@x", unique_id = "42" }
  }
  override_resource {
    target = module.builds.google_service_account.builder
    values = { email = "builder@x", name = "BUILDER", member = "serviceAccount:builder@x" }
  }
  override_resource {
    target = module.accounts.google_service_account.streams
    values = { email = "streams@x.iam.gserviceaccount.com", name = "STREAMS", member = "serviceAccount:streams@x" }
  }
  override_data {
    target = module.keys.data.google_storage_project_service_account.storage
    values = { email_address = "storage@x" }
  }
  override_data {
    target = module.keys.data.google_bigquery_default_service_account.bigquery
    values = { email = "bigquery@x" }
  }
  override_resource {
    target = module.network.google_compute_network.made
    values = { id = "NETWORK" }
  }
  override_resource {
    target = module.network.google_compute_subnetwork.made
    values = { id = "SUBNETWORK" }
  }
  override_resource {
    target = module.cluster.google_container_cluster.this
    values = { id = "projects/my-gpus/locations/europe-west4/clusters/night" }
  }
  override_resource {
    target = module.registry.google_artifact_registry_repository.images
    values = { id = "IMAGES" }
  }
  override_resource {
    target = module.registry.google_artifact_registry_repository.docker_hub
    values = { id = "DOCKER_HUB" }
  }
  override_resource {
    target = module.registry.google_artifact_registry_repository.wheels
    values = { id = "WHEELS" }
  }
  override_resource {
    target = module.registry.google_artifact_registry_repository.pypi
    values = { id = "PYPI" }
  }
  override_resource {
    target = module.registry.google_artifact_registry_repository.packages
    values = { id = "ALL" }
  }
  override_resource {
    target = module.pubsub.google_pubsub_topic.messages
    values = { id = "projects/my-project/topics/texts" }
  }
  override_resource {
    target = module.pubsub.google_pubsub_topic.dead_letters
    values = { id = "projects/my-project/topics/texts-dead" }
  }
  override_resource {
    target = module.alloydb.google_alloydb_cluster.this
    values = { name = "DATABASE" }
  }
  override_resource {
    target = module.alloydb.google_alloydb_instance.primary
    values = { ip_address = "10.60.0.2" }
  }
}

# Projects' numbers are asked for once the APIs are enabled, so no plan would know them (defaults.tftest.hcl tries the module itself).
override_module {
  target = module.apis
  outputs = {
    project         = "my-project"
    cluster_project = "my-gpus"
    number          = "111"
    cluster_number  = "222"
  }
}

variables {
  project_id         = "my-project"
  cluster_project_id = "my-gpus"
  region             = "europe-west4"
  name               = "night"
  bucket             = "my-runs"
  operators          = ["group:ml@example.com"]
  jobs               = ["product-texts"]
  streams            = { texts = { files = "streams/texts", ordering = true }, vectors = {} }
  source_datasets    = ["catalog"]
  target_datasets    = ["predictions"]
  lifecycle_days     = 30
  default_zones      = ["europe-west4-a", "europe-west4-b"]
  default_nodes_max  = 9
  alloydb            = true
  alloydb_cpus       = 4
  kms_key            = "projects/my-keys/locations/europe-west4/keyRings/data/cryptoKeys/night"
  budget             = { billing_account = "012345-6789AB-CDEF01", amount = 5000 }
  docker_hub         = { username = "me", secret = "projects/my-gpus/secrets/hub/versions/1" }
  labels             = { team = "search" }
  node_pools = {
    l4-spot  = { profile = "gpu-l4-spot", max_nodes = 8, zones = ["europe-west4-a", "europe-west4-c"] }
    l4-flex  = { profile = "gpu-l4-flex" }
    l4-large = { profile = "gpu-l4", accelerators = 4 }
    h100     = { profile = "gpu-h100-spot", hosts = 2, slices = 2, zones = ["europe-west4-a"] }
    v6e      = { profile = "tpu-v6e-reservation", topology = "4x4", reservation = "mine", zones = ["europe-west4-a"] }
    h200     = { profile = "gpu-h200-flex" }
  }
  reservations = { mine = { machine_type = "ct6e-standard-4t", zone = "europe-west4-a", count = 4 } }
  maintenance = {
    exclusions = { christmas = { start = "2026-12-20T00:00:00Z", end = "2027-01-02T00:00:00Z" } }
  }
  composer_network_attachment = "projects/my-project/regions/europe-west4/networkAttachments/airflow"
  notification_channels       = ["projects/my-gpus/notificationChannels/1"]
  deletion_protection         = false
}

run "production" {
  command = plan

  # Network

  assert {
    condition     = jsonencode(one([for each in module.network.made.compute_network_made : [each.project, each.name, each.auto_create_subnetworks]])) == jsonencode(["my-gpus", "night", false])
    error_message = "The network is in the cluster's project, without subnetworks of its own accord."
  }
  assert {
    condition = jsonencode(one([for each in module.network.made.compute_subnetwork_made : [
      each.project, each.region, each.name, each.network, each.ip_cidr_range, each.private_ip_google_access,
      [for range in each.secondary_ip_range : [range.range_name, range.ip_cidr_range]],
    ]])) == jsonencode(["my-gpus", "europe-west4", "night", "NETWORK", "10.10.0.0/20", true, [["pods", "10.20.0.0/14"], ["services", "10.24.0.0/20"]]])
    error_message = "Nodes without addresses reach Google's APIs by Private Google Access; pods and services have their ranges."
  }
  assert {
    condition = jsonencode(one([for each in module.network.made.compute_router_nat_made : [
      each.project, each.region, each.name, each.router, each.nat_ip_allocate_option, each.source_subnetwork_ip_ranges_to_nat,
      each.enable_dynamic_port_allocation, each.enable_endpoint_independent_mapping,
    ]])) == jsonencode(["my-gpus", "europe-west4", "night", "night", "AUTO_ONLY", "ALL_SUBNETWORKS_ALL_IP_RANGES", true, false])
    error_message = "Nodes reach the internet by Cloud NAT, with as many ports as they need."
  }
  assert {
    condition     = jsonencode(one([for each in module.network.made.compute_router_made : [each.project, each.region, each.name, each.network]])) == jsonencode(["my-gpus", "europe-west4", "night", "NETWORK"])
    error_message = "The NAT needs a router in the same network and region."
  }
  assert {
    condition = jsonencode(one([for each in module.network.made.compute_firewall_webhooks : [
      each.project, each.name, each.network, each.direction, each.source_ranges, [for rule in each.allow : [rule.protocol, rule.ports]],
    ]])) == jsonencode(["my-gpus", "night-webhooks", "NETWORK", "INGRESS", toset(["10.10.0.0/20"]), [["tcp", ["9443"]]]])
    error_message = "The control plane reaches the webhooks of JobSet and Kueue on 9443."
  }
  assert {
    condition = jsonencode(one([for each in module.network.made.compute_global_address_service_access : [
      each.project, each.name, each.purpose, each.address_type, each.prefix_length, each.network,
    ]])) == jsonencode(["my-gpus", "night-services", "VPC_PEERING", "INTERNAL", 20, "NETWORK"])
    error_message = "AlloyDB gets addresses of the network."
  }
  assert {
    condition = jsonencode(one([for each in module.network.made.service_networking_connection_service_access : [
      each.network, each.service, each.reserved_peering_ranges,
    ]])) == jsonencode(["NETWORK", "servicenetworking.googleapis.com", ["night-services"]])
    error_message = "AlloyDB's network is connected."
  }

  # Cluster

  assert {
    condition = (
      module.cluster.made.container_cluster_this.private_cluster_config[0].enable_private_nodes
      && module.cluster.made.container_cluster_this.control_plane_endpoints_config[0].dns_endpoint_config[0].allow_external_traffic
      && !module.cluster.made.container_cluster_this.control_plane_endpoints_config[0].ip_endpoints_config[0].enabled
    )
    error_message = "Nodes are private, and the control plane is called by its name alone."
  }
  assert {
    condition = jsonencode([
      module.cluster.made.container_cluster_this.project, module.cluster.made.container_cluster_this.name,
      module.cluster.made.container_cluster_this.location, module.cluster.made.container_cluster_this.network,
      module.cluster.made.container_cluster_this.subnetwork, module.cluster.made.container_cluster_this.node_locations,
      module.cluster.made.container_cluster_this.ip_allocation_policy[0].cluster_secondary_range_name,
      module.cluster.made.container_cluster_this.ip_allocation_policy[0].services_secondary_range_name,
    ]) == jsonencode(["my-gpus", "night", "europe-west4", "NETWORK", "SUBNETWORK", toset(["europe-west4-a", "europe-west4-b"]), "pods", "services"])
    error_message = "The cluster is regional, in the cluster's project and network."
  }
  assert {
    condition = jsonencode([
      module.cluster.made.container_cluster_this.addons_config[0].horizontal_pod_autoscaling[0].disabled,
      module.cluster.made.container_cluster_this.addons_config[0].http_load_balancing[0].disabled,
      module.cluster.made.container_cluster_this.addons_config[0].gcs_fuse_csi_driver_config[0].enabled,
      module.cluster.made.container_cluster_this.addons_config[0].gce_persistent_disk_csi_driver_config[0].enabled,
    ]) == jsonencode([false, false, true, true])
    error_message = "Autoscaling, load balancing, Cloud Storage FUSE and disks are all on."
  }
  assert {
    condition = jsonencode([
      module.cluster.made.container_cluster_this.gateway_api_config[0].channel,
      module.cluster.made.container_cluster_this.pod_autoscaling[0].hpa_profile,
      module.cluster.made.container_cluster_this.datapath_provider,
      module.cluster.made.container_cluster_this.workload_identity_config[0].workload_pool,
      module.cluster.made.container_cluster_this.release_channel[0].channel,
      module.cluster.made.container_cluster_this.min_master_version,
    ]) == jsonencode(["CHANNEL_STANDARD", "PERFORMANCE", "ADVANCED_DATAPATH", "my-gpus.svc.id.goog", "REGULAR", "1.34"])
    error_message = "Gateways, fast autoscalers, network policies and identities of pods."
  }
  assert {
    condition = jsonencode([
      module.cluster.made.container_cluster_this.monitoring_config[0].enable_components,
      module.cluster.made.container_cluster_this.monitoring_config[0].managed_prometheus[0].enabled,
      module.cluster.made.container_cluster_this.logging_config[0].enable_components,
      module.cluster.made.container_cluster_this.cost_management_config[0].enabled,
    ]) == jsonencode([["SYSTEM_COMPONENTS", "HPA", "POD", "DEPLOYMENT", "JOBSET", "DCGM"], true, ["SYSTEM_COMPONENTS", "WORKLOADS"], true])
    error_message = "Metrics of GPUs and JobSets, managed Prometheus, logs of pods and costs by namespace are collected."
  }
  assert {
    condition = jsonencode([
      module.cluster.made.container_cluster_this.enable_shielded_nodes, module.cluster.made.container_cluster_this.remove_default_node_pool,
      module.cluster.made.container_cluster_this.initial_node_count, module.cluster.made.container_cluster_this.enable_autopilot,
      module.cluster.made.container_cluster_this.node_config[0].service_account,
      module.cluster.made.container_cluster_this.node_pool_defaults[0].node_config_defaults[0].gcfs_config[0].enabled,
      module.cluster.made.container_cluster_this.deletion_protection, module.cluster.made.container_cluster_this.resource_labels,
    ]) == jsonencode([true, true, 1, null, "nodes@x", true, false, tomap({ app = "nightshift", deployment = "night", team = "search" })])
    error_message = "A Standard cluster, whose nodes run as their own account and stream their images."
  }
  assert {
    condition = jsonencode([
      for window in module.cluster.made.container_cluster_this.maintenance_policy[0].recurring_window : [window.start_time, window.end_time, window.recurrence]
    ]) == jsonencode([["2026-01-01T09:00:00Z", "2026-01-01T15:00:00Z", "FREQ=DAILY"]])
    error_message = "Upgrades come by day."
  }
  assert {
    condition = jsonencode([
      for each in module.cluster.made.container_cluster_this.maintenance_policy[0].maintenance_exclusion :
      [each.exclusion_name, each.start_time, each.end_time, each.exclusion_options[0].scope]
    ]) == jsonencode([["christmas", "2026-12-20T00:00:00Z", "2027-01-02T00:00:00Z", "NO_MINOR_OR_NODE_UPGRADES"]])
    error_message = "No upgrade of nodes in an exclusion."
  }
  assert {
    condition = jsonencode(one([for each in module.cluster.made.container_node_pool_default : [
      each.project, each.name, each.node_locations, each.initial_node_count, each.autoscaling[0].total_min_node_count, each.autoscaling[0].total_max_node_count,
      each.autoscaling[0].location_policy, each.node_config[0].machine_type, each.node_config[0].service_account,
      each.node_config[0].workload_metadata_config[0].mode,
    ]])) == jsonencode(["my-gpus", "default", toset(["europe-west4-a", "europe-west4-b"]), 1, 3, 9, "BALANCED", "e2-standard-4", "nodes@x", "GKE_METADATA"])
    error_message = "The ordinary nodes scale, over all zones."
  }

  # Pools

  assert {
    condition = jsonencode({
      for name, each in module.cluster.made.container_node_pool_accelerators : name => [
        each.node_config[0].machine_type, each.node_config[0].disk_size_gb, each.node_config[0].disk_type,
        each.autoscaling[0].total_min_node_count, each.autoscaling[0].total_max_node_count,
        each.autoscaling[0].min_node_count, each.autoscaling[0].max_node_count,
      ]
      }) == jsonencode({
      l4-spot  = ["g2-standard-8", 170, "pd-balanced", 0, 8, null, null]
      l4-flex  = ["g2-standard-8", 170, "pd-balanced", 0, 16, null, null]
      l4-large = ["g2-standard-48", 250, "pd-balanced", 0, 16, null, null]
      h100-1   = ["a3-highgpu-8g", 1680, "pd-balanced", null, null, 0, 2]
      h100-2   = ["a3-highgpu-8g", 1680, "pd-balanced", null, null, 0, 2]
      v6e-1    = ["ct6e-standard-4t", 750, "hyperdisk-balanced", null, null, 0, 4]
      h200     = ["a3-ultragpu-8g", 1490, "hyperdisk-balanced", 0, 16, null, null]
    })
    error_message = "Machines, disks and limits of the pools are those of the profiles."
  }

  # Pools bought

  assert {
    condition = jsonencode({
      for name, each in module.cluster.made.container_node_pool_accelerators : name => [
        each.project, each.node_locations, each.autoscaling[0].location_policy, each.node_config[0].spot,
        each.node_config[0].flex_start, each.management[0].auto_repair, each.management[0].auto_upgrade, each.node_config[0].service_account,
        each.node_config[0].gcfs_config[0].enabled, each.node_config[0].workload_metadata_config[0].mode,
      ]
      }) == jsonencode({
      l4-spot  = ["my-gpus", ["europe-west4-a", "europe-west4-c"], "ANY", true, null, true, true, "nodes@x", true, "GKE_METADATA"]
      l4-flex  = ["my-gpus", ["europe-west4-a", "europe-west4-b"], "ANY", false, true, false, true, "nodes@x", true, "GKE_METADATA"]
      l4-large = ["my-gpus", ["europe-west4-a", "europe-west4-b"], "ANY", false, null, true, true, "nodes@x", true, "GKE_METADATA"]
      h100-1   = ["my-gpus", ["europe-west4-a"], "ANY", true, null, true, true, "nodes@x", true, "GKE_METADATA"]
      h100-2   = ["my-gpus", ["europe-west4-a"], "ANY", true, null, true, true, "nodes@x", true, "GKE_METADATA"]
      v6e-1    = ["my-gpus", ["europe-west4-a"], "ANY", false, null, true, true, "nodes@x", true, "GKE_METADATA"]
      h200     = ["my-gpus", ["europe-west4-a", "europe-west4-b"], "ANY", false, true, false, true, "nodes@x", true, "GKE_METADATA"]
    })
    error_message = "Machines are bought as the profile says, in any of the pool's zones; only a slice has one zone."
  }
  assert {
    condition = jsonencode({
      for name, each in module.cluster.made.container_node_pool_accelerators : name => [
        [for gpu in each.node_config[0].guest_accelerator : [gpu.type, gpu.count, gpu.gpu_driver_installation_config[0].gpu_driver_version]],
        [for kind in each.node_config[0].reservation_affinity : [kind.consume_reservation_type, kind.key, kind.values]],
        [for placement in each.placement_policy : [placement.type, placement.tpu_topology]],
      ]
      }) == jsonencode({
      l4-spot  = [[["nvidia-l4", 1, "LATEST"]], [], []]
      l4-flex  = [[["nvidia-l4", 1, "LATEST"]], [["NO_RESERVATION", null, null]], []]
      l4-large = [[["nvidia-l4", 4, "LATEST"]], [], []]
      h100-1   = [[["nvidia-h100-80gb", 8, "LATEST"]], [], [["COMPACT", null]]]
      h100-2   = [[["nvidia-h100-80gb", 8, "LATEST"]], [], [["COMPACT", null]]]
      v6e-1    = [[], [["SPECIFIC_RESERVATION", "compute.googleapis.com/reservation-name", ["mine"]]], [["COMPACT", "4x4"]]]
      h200     = [[["nvidia-h200-141gb", 8, "LATEST"]], [["NO_RESERVATION", null, null]], []]
    })
    error_message = "Accelerators, reservations and placement are those of the profile."
  }
  assert {
    condition = jsonencode([
      for each in values(module.cluster.made.compute_reservation_made) : [
        each.project, each.name, each.zone, each.specific_reservation_required, each.specific_reservation[0].count,
        each.specific_reservation[0].instance_properties[0].machine_type,
      ]
    ]) == jsonencode([["my-gpus", "mine", "europe-west4-a", true, 4, "ct6e-standard-4t"]])
    error_message = "The reservation is for those who name it."
  }

  # Keys

  assert {
    condition = jsonencode([
      one(module.storage.made.storage_bucket_runs.encryption[*].default_kms_key_name),
      one(module.composer.made.storage_bucket_airflow.encryption[*].default_kms_key_name),
      one(module.composer.made.composer_environment_this.config[0].encryption_config[*].kms_key_name),
      one(module.cluster.made.container_cluster_this.database_encryption[*].key_name),
      one(module.cluster.made.container_cluster_this.database_encryption[*].state),
      one(module.cluster.made.container_cluster_this.node_config[*].boot_disk_kms_key),
      one(module.cluster.made.container_node_pool_default[*].node_config[0].boot_disk_kms_key),
      distinct([for each in values(module.cluster.made.container_node_pool_accelerators) : each.node_config[0].boot_disk_kms_key]),
      one(module.alloydb[0].made.alloydb_cluster_this.encryption_config[*].kms_key_name),
      one(module.alloydb[0].made.alloydb_cluster_this.continuous_backup_config[0].encryption_config[*].kms_key_name),
      ]) == jsonencode([
      var.kms_key, var.kms_key, var.kms_key, var.kms_key, "ENCRYPTED", var.kms_key, var.kms_key, [var.kms_key], var.kms_key, var.kms_key,
    ])
    error_message = "What keeps data is encrypted with the key: buckets, Airflow, the cluster's secrets and disks, the database and its backups."
  }
  assert {
    condition = alltrue(concat(
      [for each in values(module.storage.made.bigquery_dataset_each) : try(each.default_encryption_configuration[0].kms_key_name == var.kms_key, false)],
      [for each in values(module.pubsub.made.pubsub_topic_messages) : each.kms_key_name == var.kms_key],
      [for each in values(module.pubsub.made.pubsub_topic_dead_letters) : each.kms_key_name == var.kms_key],
    ))
    error_message = "Datasets and topics are encrypted with the key."
  }
  assert {
    condition = jsonencode([
      for kind in ["images", "docker_hub", "wheels", "pypi", "packages"] : module.registry.made["artifact_registry_repository_${kind}"].kms_key_name
    ]) == jsonencode([var.kms_key, var.kms_key, var.kms_key, var.kms_key, var.kms_key])
    error_message = "Repositories are encrypted with the key."
  }
  assert {
    condition = jsonencode(sort([
      for each in values(module.keys.made.kms_crypto_key_iam_member_agents) : each.member
      if each.role == "roles/cloudkms.cryptoKeyEncrypterDecrypter" && each.crypto_key_id == var.kms_key
      ])) == jsonencode([
      "serviceAccount:bigquery@x",
      "serviceAccount:service-111@cloudcomposer-accounts.iam.gserviceaccount.com",
      "serviceAccount:service-111@compute-system.iam.gserviceaccount.com",
      "serviceAccount:service-111@container-engine-robot.iam.gserviceaccount.com",
      "serviceAccount:service-111@gcp-sa-artifactregistry.iam.gserviceaccount.com",
      "serviceAccount:service-111@gcp-sa-pubsub.iam.gserviceaccount.com",
      "serviceAccount:service-222@compute-system.iam.gserviceaccount.com",
      "serviceAccount:service-222@container-engine-robot.iam.gserviceaccount.com",
      "serviceAccount:service-222@gcp-sa-alloydb.iam.gserviceaccount.com",
      "serviceAccount:service-222@gcp-sa-artifactregistry.iam.gserviceaccount.com",
      "serviceAccount:storage@x",
    ])
    error_message = "Every agent that encrypts may use the key."
  }

  # Storage and registry

  assert {
    condition = jsonencode([
      module.storage.made.storage_bucket_runs.project, module.storage.made.storage_bucket_runs.name, module.storage.made.storage_bucket_runs.location,
      module.storage.made.storage_bucket_runs.uniform_bucket_level_access, module.storage.made.storage_bucket_runs.public_access_prevention,
      module.storage.made.storage_bucket_runs.force_destroy, one(module.storage.made.storage_bucket_runs.soft_delete_policy[*].retention_duration_seconds),
      [for rule in module.storage.made.storage_bucket_runs.lifecycle_rule : [one(rule.action).type, one(rule.condition).age]],
    ]) == jsonencode(["my-project", "my-runs", "europe-west4", true, "enforced", true, 0, [["Delete", 30]]])
    error_message = "The bucket of runs: uniform access, not public, no soft delete, one age for all of it."
  }
  assert {
    condition = jsonencode({
      for name, each in module.storage.made.bigquery_dataset_each : name => [each.project, each.dataset_id, each.location, each.delete_contents_on_destroy]
      }) == jsonencode({
      catalog     = ["my-project", "catalog", "europe-west4", true]
      nightshift  = ["my-project", "nightshift", "europe-west4", true]
      predictions = ["my-project", "predictions", "europe-west4", true]
    })
    error_message = "The datasets are where the bucket is."
  }
  assert {
    condition = jsonencode({
      for kind, each in module.registry.made : trimprefix(kind, "artifact_registry_repository_") => [
        each.project, each.location, each.repository_id, each.format, each.mode, each.description,
      ]
      }) == jsonencode({
      images     = ["my-gpus", "europe-west4", "night", "DOCKER", null, "Images of the driver and of streams"]
      docker_hub = ["my-gpus", "europe-west4", "night-docker-hub", "DOCKER", "REMOTE_REPOSITORY", "Docker Hub, for vLLM's images"]
      wheels     = ["my-project", "europe-west4", "night-python", "PYTHON", null, "The wheel"]
      pypi       = ["my-project", "europe-west4", "night-python-pypi", "PYTHON", "REMOTE_REPOSITORY", "PyPI"]
      packages   = ["my-project", "europe-west4", "night-python-all", "PYTHON", "VIRTUAL_REPOSITORY", "The wheel first, then PyPI"]
    })
    error_message = "Five repositories with five names."
  }
  assert {
    condition = jsonencode([
      module.registry.made.artifact_registry_repository_docker_hub.remote_repository_config[0].docker_repository[0].public_repository,
      module.registry.made.artifact_registry_repository_docker_hub.remote_repository_config[0].upstream_credentials[0].username_password_credentials[0].username,
      module.registry.made.artifact_registry_repository_docker_hub.remote_repository_config[0].upstream_credentials[0].username_password_credentials[0].password_secret_version,
      module.registry.made.artifact_registry_repository_pypi.remote_repository_config[0].python_repository[0].public_repository,
      [
        for each in module.registry.made.artifact_registry_repository_packages.virtual_repository_config[0].upstream_policies :
        [each.id, each.repository, each.priority]
      ],
    ]) == jsonencode(["DOCKER_HUB", "me", "projects/my-gpus/secrets/hub/versions/1", "PYPI", [["own", "WHEELS", 100], ["pypi", "PYPI", 10]]])
    error_message = "Copies of Docker Hub and PyPI; of a package that both have, ours is the one."
  }

  # Airflow

  assert {
    condition = jsonencode([
      module.composer.made.composer_environment_this.project, module.composer.made.composer_environment_this.region,
      module.composer.made.composer_environment_this.name, module.composer.made.composer_environment_this.storage_config[0].bucket,
      module.composer.made.composer_environment_this.config[0].environment_size,
      module.composer.made.composer_environment_this.config[0].enable_private_environment,
      module.composer.made.composer_environment_this.config[0].node_config[0].service_account,
      module.composer.made.composer_environment_this.config[0].node_config[0].composer_network_attachment,
      module.composer.made.composer_environment_this.config[0].software_config[0].image_version,
      [for each in module.composer.made.composer_environment_this.config[0].workloads_config[0].triggerer : [each.count, each.cpu, each.memory_gb]],
      ]) == jsonencode([
      "my-project", "europe-west4", "night", "my-runs-airflow", "ENVIRONMENT_SIZE_SMALL", true, "airflow@x",
      "projects/my-project/regions/europe-west4/networkAttachments/airflow", "composer-3-airflow-3.3.1", [[2, 1, 2]],
    ])
    error_message = "Airflow runs as its account, in its bucket and network, with two triggerers."
  }
  assert {
    condition = jsonencode(module.composer.made.composer_environment_this.config[0].software_config[0].env_variables) == jsonencode({
      NIGHTSHIFT_RESERVATIONS     = "ct6e-standard-4t=mine"
      NIGHTSHIFT_BUCKET           = "my-runs"
      NIGHTSHIFT_PROJECT          = "my-project"
      NIGHTSHIFT_LOCATION         = "europe-west4"
      NIGHTSHIFT_RUNTIME          = "gke:projects/my-gpus/locations/europe-west4/clusters/night"
      NIGHTSHIFT_SERVICE_ACCOUNT  = "nightshift-{job}"
      NIGHTSHIFT_PRIORITY_CLASS   = "nightshift-batch"
      NIGHTSHIFT_DRIVER_IMAGE     = "europe-west4-docker.pkg.dev/my-gpus/night/driver:0.3.0"
      NIGHTSHIFT_STREAM_IMAGE     = "europe-west4-docker.pkg.dev/my-gpus/night/stream:0.3.0"
      NIGHTSHIFT_SERVER_IMAGE     = "europe-west4-docker.pkg.dev/my-gpus/night-docker-hub/vllm/vllm-openai:v0.33.0"
      NIGHTSHIFT_CPU_SERVER_IMAGE = "europe-west4-docker.pkg.dev/my-gpus/night-docker-hub/vllm/vllm-openai-cpu:v0.31.0"
      NIGHTSHIFT_TPU_SERVER_IMAGE = "europe-west4-docker.pkg.dev/my-gpus/night-docker-hub/vllm/vllm-tpu:v0.27.0"
    })
    error_message = "The settings name what is made here."
  }
  assert {
    condition     = jsonencode(keys(module.composer.made.composer_environment_this.config[0].software_config[0].pypi_packages)) == jsonencode(["airflow-provider-nightshift", "jsonschema-rs", "obstore", "orjson", "sqlglot"])
    error_message = "The wheel and what Composer's image lacks."
  }
  assert {
    condition = jsonencode([
      module.composer.made.storage_bucket_airflow.project, module.composer.made.storage_bucket_airflow.name, module.composer.made.storage_bucket_airflow.location,
      module.composer.made.storage_bucket_airflow.uniform_bucket_level_access, module.composer.made.storage_bucket_airflow.public_access_prevention,
      module.composer.made.storage_bucket_airflow.force_destroy,
      module.composer.made.storage_bucket_object_pip.bucket, module.composer.made.storage_bucket_object_pip.name, module.composer.made.storage_bucket_object_pip.content,
      ]) == jsonencode([
      "my-project", "my-runs-airflow", "europe-west4", true, "enforced", true, "my-runs-airflow", "config/pip/pip.conf",
      "[global]\nindex-url = https://europe-west4-python.pkg.dev/my-project/night-python-all/simple/\n",
    ])
    error_message = "pip asks our repository alone, before the environment installs a package."
  }
  assert {
    condition = (
      module.composer.made.storage_bucket_object_dags["batch_inference.py"].name == "dags/batch_inference.py"
      && module.composer.made.storage_bucket_object_dags["batch_inference.py"].bucket == "my-runs-airflow"
      && endswith(module.composer.made.storage_bucket_object_dags["batch_inference.py"].source, "/dags/batch_inference.py")
      && !contains(keys(module.composer.made.storage_bucket_object_dags), "jobs/package-embeddings.yaml")
      && !contains(keys(module.composer.made.storage_bucket_object_dags), "streams/package-texts.yaml")
    )
    error_message = "The DAGs are there, and the local stack's demo is not."
  }

  # Streams

  assert {
    condition = jsonencode([
      for each in [module.pubsub.made.pubsub_topic_messages["texts"], module.pubsub.made.pubsub_topic_dead_letters["texts"]] :
      [each.project, each.name, each.message_retention_duration, one(each.message_storage_policy).allowed_persistence_regions]
    ]) == jsonencode([["my-project", "texts", "604800s", ["europe-west4"]], ["my-project", "texts-dead", null, ["europe-west4"]]])
    error_message = "A stream's topics keep their messages in the region, and those that were answered for a week."
  }
  assert {
    condition = jsonencode([
      for each in [module.pubsub.made.pubsub_subscription_messages["texts"], module.pubsub.made.pubsub_subscription_dead_letters["texts"]] : [
        each.project, each.name, each.topic, each.message_retention_duration, [for policy in each.expiration_policy : policy.ttl],
        [for policy in each.dead_letter_policy : [policy.dead_letter_topic, policy.max_delivery_attempts]],
        [for policy in each.retry_policy : [policy.minimum_backoff, policy.maximum_backoff]],
      ]
      ]) == jsonencode([
      [
        "my-project", "texts", "projects/my-project/topics/texts", "604800s", [""],
        [["projects/my-project/topics/texts-dead", 50]], [["10s", "600s"]],
      ],
      ["my-project", "texts-dead", "projects/my-project/topics/texts-dead", "2678400s", [""], [], []],
    ])
    error_message = "A subscription has a dead-letter policy and a retry policy, and neither it nor that of the dead letters ever expires."
  }
  assert {
    condition = jsonencode([
      module.pubsub.made.pubsub_subscription_messages["texts"].enable_message_ordering, module.pubsub.made.pubsub_subscription_messages["texts"].ack_deadline_seconds,
    ]) == jsonencode([true, 60])
    error_message = "Ordering as the stream says."
  }
  assert {
    condition = jsonencode([
      for each in [module.pubsub.made.pubsub_topic_iam_member_agent["texts"], module.pubsub.made.pubsub_subscription_iam_member_agent["texts"]] :
      [each.project, try(each.topic, each.subscription), each.role, each.member]
      ]) == jsonencode([
      ["my-project", "texts-dead", "roles/pubsub.publisher", "serviceAccount:service-111@gcp-sa-pubsub.iam.gserviceaccount.com"],
      ["my-project", "texts", "roles/pubsub.subscriber", "serviceAccount:service-111@gcp-sa-pubsub.iam.gserviceaccount.com"],
    ])
    error_message = "Pub/Sub's agent may move messages to the dead letters."
  }
  assert {
    condition = jsonencode([
      module.alloydb[0].made.alloydb_cluster_this.project, module.alloydb[0].made.alloydb_cluster_this.location,
      module.alloydb[0].made.alloydb_cluster_this.cluster_id, module.alloydb[0].made.alloydb_cluster_this.deletion_policy,
      one(module.alloydb[0].made.alloydb_cluster_this.network_config).network, one(module.alloydb[0].made.alloydb_cluster_this.continuous_backup_config).enabled,
    ]) == jsonencode(["my-gpus", "europe-west4", "night", "FORCE", "NETWORK", true])
    error_message = "The database is in the cluster's network, with backups."
  }
  assert {
    condition = jsonencode([
      module.alloydb[0].made.alloydb_instance_primary.cluster, module.alloydb[0].made.alloydb_instance_primary.instance_id,
      module.alloydb[0].made.alloydb_instance_primary.instance_type, module.alloydb[0].made.alloydb_instance_primary.availability_type,
      one(module.alloydb[0].made.alloydb_instance_primary.machine_config).cpu_count, module.alloydb[0].made.alloydb_instance_primary.database_flags,
      one(one(module.alloydb[0].made.alloydb_instance_primary.client_connection_config).ssl_config).ssl_mode,
      module.alloydb[0].made.alloydb_user_streams.cluster, module.alloydb[0].made.alloydb_user_streams.user_id,
      module.alloydb[0].made.alloydb_user_streams.user_type, module.alloydb[0].made.alloydb_user_streams.database_roles,
      ]) == jsonencode([
      "DATABASE", "primary", "PRIMARY", "REGIONAL", 4, { "alloydb.iam_authentication" = "on" }, "ENCRYPTED_ONLY",
      "DATABASE", "streams@x.iam", "ALLOYDB_IAM_USER", ["alloydbiamuser", "alloydbsuperuser"],
    ])
    error_message = "Streams log in with IAM, over TLS, and may create their extension."
  }

  # Roles

  assert {
    condition = jsonencode(sort(concat(
      [for each in values(module.identities.made.project_iam_member_nodes) : "${each.project} ${each.role} ${each.member}"],
      [for each in values(module.identities.made.project_iam_member_airflow) : "${each.project} ${each.role} ${each.member}"],
      [for each in [module.identities.made.project_iam_member_airflow_cluster, module.builds.made.project_iam_member_logs, module.builds.made.project_iam_member_source] : "${each.project} ${each.role} ${each.member}"],
      [for each in values(module.identities.made.project_iam_member_adapter) : "${each.project} ${each.role} adapter"],
      [for each in module.identities.made.project_iam_member_adapter_writes : "${each.project} ${each.role} adapter"],
      [for each in values(module.identities.made.project_iam_member_database) : "${each.project} ${each.role} ${each.member}"],
      ))) == jsonencode([
      "my-gpus roles/alloydb.client serviceAccount:streams@x",
      "my-gpus roles/alloydb.databaseUser serviceAccount:streams@x",
      "my-gpus roles/container.clusterViewer serviceAccount:airflow@x",
      "my-gpus roles/container.defaultNodeServiceAccount serviceAccount:nodes@x",
      "my-gpus roles/monitoring.metricWriter adapter",
      "my-gpus roles/monitoring.viewer adapter",
      "my-gpus roles/serviceusage.serviceUsageConsumer serviceAccount:nodes@x",
      "my-gpus roles/serviceusage.serviceUsageConsumer serviceAccount:streams@x",
      "my-project roles/bigquery.jobUser serviceAccount:airflow@x",
      "my-project roles/composer.worker serviceAccount:airflow@x",
      "my-project roles/logging.logWriter serviceAccount:builder@x",
      "my-project roles/monitoring.viewer adapter",
      "my-project roles/storage.objectViewer serviceAccount:builder@x",
    ])
    error_message = "Roles on projects are those of k8s/README.md, and no others."
  }
  assert {
    condition = jsonencode(module.builds.made.project_iam_member_source.condition[*]) == jsonencode([{
      title      = "source", description = null
      expression = "resource.name == \"projects/_/buckets/my-project_cloudbuild\" || resource.name.startsWith(\"projects/_/buckets/my-project_cloudbuild/\")"
    }])
    error_message = "The builder reads the bucket of sources alone."
  }
  assert {
    condition = jsonencode(distinct([for each in concat(values(module.identities.made.project_iam_member_adapter), module.identities.made.project_iam_member_adapter_writes) : each.member])) == jsonencode([
      "principal://iam.googleapis.com/projects/222/locations/global/workloadIdentityPools/my-gpus.svc.id.goog/subject/ns/custom-metrics/sa/custom-metrics-stackdriver-adapter",
    ])
    error_message = "The adapter is known by its Kubernetes account."
  }
  assert {
    condition = jsonencode(sort(concat(
      [for each in values(module.identities.made.artifact_registry_repository_iam_member_nodes) : "${each.project} ${each.location} ${each.repository} ${each.role} ${each.member}"],
      [for each in values(module.identities.made.artifact_registry_repository_iam_member_airflow) : "${each.project} ${each.location} ${each.repository} ${each.role} ${each.member}"],
      [for each in [module.builds.made.artifact_registry_repository_iam_member_images, module.builds.made.artifact_registry_repository_iam_member_wheels] : "${each.project} ${each.location} ${each.repository} ${each.role} ${each.member}"],
      ))) == jsonencode([
      "my-gpus europe-west4 DOCKER_HUB roles/artifactregistry.reader serviceAccount:nodes@x",
      "my-gpus europe-west4 IMAGES roles/artifactregistry.reader serviceAccount:nodes@x",
      "my-gpus europe-west4 IMAGES roles/artifactregistry.writer serviceAccount:builder@x",
      "my-project europe-west4 ALL roles/artifactregistry.reader serviceAccount:airflow@x",
      "my-project europe-west4 PYPI roles/artifactregistry.reader serviceAccount:airflow@x",
      "my-project europe-west4 WHEELS roles/artifactregistry.reader serviceAccount:airflow@x",
      "my-project europe-west4 WHEELS roles/artifactregistry.writer serviceAccount:builder@x",
    ])
    error_message = "Nodes pull images, Airflow installs packages, builds push."
  }
  assert {
    condition = jsonencode(sort(concat(
      [for each in values(module.identities.made.storage_bucket_iam_member_airflow) : "${each.bucket} ${each.role} ${each.member}"],
      [for each in module.identities.made.bigquery_dataset_iam_member_airflow_reads : "${each.project}.${each.dataset_id} ${each.role} ${each.member}"],
      [for each in module.identities.made.bigquery_dataset_iam_member_airflow_writes : "${each.project}.${each.dataset_id} ${each.role} ${each.member}"],
      [for each in values(module.builds.made.service_account_iam_member_operators) : "${each.service_account_id} ${each.role} ${each.member}"],
      [for each in values(module.identities.made.service_account_iam_member_operators) : "${each.service_account_id} ${each.role} ${each.member}"],
      ))) == jsonencode([
      "AIRFLOW roles/iam.serviceAccountUser group:ml@example.com",
      "BUILDER roles/iam.serviceAccountUser group:ml@example.com",
      "NODES roles/iam.serviceAccountUser group:ml@example.com",
      "my-project.catalog roles/bigquery.dataViewer serviceAccount:airflow@x",
      "my-project.nightshift roles/bigquery.dataEditor serviceAccount:airflow@x",
      "my-project.predictions roles/bigquery.dataEditor serviceAccount:airflow@x",
      "my-runs roles/storage.legacyBucketReader serviceAccount:airflow@x",
      "my-runs roles/storage.objectUser serviceAccount:airflow@x",
    ])
    error_message = "Airflow reads sources, writes targets and the bucket; operators may act as the accounts."
  }
  assert {
    condition = jsonencode([
      for each in [
        module.identities.made.storage_bucket_iam_member_jobs_create["product-texts"], module.identities.made.storage_bucket_iam_member_jobs_read["product-texts"],
        module.identities.made.storage_bucket_iam_member_files_create["texts"], module.identities.made.storage_bucket_iam_member_files_read["texts"],
      ] : [each.bucket, each.role, split("/subject/", each.member), each.condition[0].title, each.condition[0].expression]
      ]) == jsonencode([
      [
        "my-runs", "roles/storage.objectCreator",
        ["principal://iam.googleapis.com/projects/222/locations/global/workloadIdentityPools/my-gpus.svc.id.goog", "ns/nightshift/sa/nightshift-product-texts"],
        "own-prefix", "resource.name.startsWith(\"projects/_/buckets/my-runs/objects/_workers/product-texts/\")",
      ],
      [
        "my-runs", "roles/storage.objectViewer",
        ["principal://iam.googleapis.com/projects/222/locations/global/workloadIdentityPools/my-gpus.svc.id.goog", "ns/nightshift/sa/nightshift-product-texts"],
        "own-runs", "resource.name == \"projects/_/buckets/my-runs\" || resource.name.startsWith(\"projects/_/buckets/my-runs/objects/product-texts/\") || resource.name.startsWith(\"projects/_/buckets/my-runs/objects/_workers/product-texts/\")",
      ],
      [
        "my-runs", "roles/storage.objectCreator",
        ["principal://iam.googleapis.com/projects/222/locations/global/workloadIdentityPools/my-gpus.svc.id.goog", "ns/nightshift/sa/texts-subscriber"],
        "own-folder", "resource.name.startsWith(\"projects/_/buckets/my-runs/objects/streams/texts/\")",
      ],
      [
        "my-runs", "roles/storage.objectViewer",
        ["principal://iam.googleapis.com/projects/222/locations/global/workloadIdentityPools/my-gpus.svc.id.goog", "ns/nightshift/sa/texts-subscriber"],
        "own-folder", "resource.name == \"projects/_/buckets/my-runs\" || resource.name.startsWith(\"projects/_/buckets/my-runs/objects/streams/texts/\")",
      ],
    ])
    error_message = "A job and a stream touch their own objects alone."
  }
  assert {
    condition = jsonencode(sort(concat(
      [for each in values(module.identities.made.pubsub_subscription_iam_member_subscribers) : "${each.project} ${each.subscription} ${each.role} ${regex("[^/]+(?:/[^/]+\\])?$", each.member)}"],
      [for each in values(module.identities.made.pubsub_topic_iam_member_subscribers) : "${each.project} ${each.topic} ${each.role} ${regex("[^/]+(?:/[^/]+\\])?$", each.member)}"],
      [for each in values(module.identities.made.service_account_iam_member_database) : "${each.service_account_id} ${each.role} ${regex("[^/]+(?:/[^/]+\\])?$", each.member)}"],
      ))) == jsonencode([
      "STREAMS roles/iam.workloadIdentityUser serviceAccount:my-gpus.svc.id.goog[nightshift/vectors-subscriber]",
      "my-project texts roles/pubsub.subscriber texts-subscriber",
      "my-project texts roles/pubsub.viewer texts-subscriber",
      "my-project texts-dead roles/pubsub.publisher texts-subscriber",
      "my-project vectors roles/pubsub.subscriber serviceAccount:streams@x",
      "my-project vectors roles/pubsub.viewer serviceAccount:streams@x",
      "my-project vectors-dead roles/pubsub.publisher serviceAccount:streams@x",
    ])
    error_message = "Subscribers pull and announce dead letters as themselves; those that write to the database do all of it as its account."
  }
  assert {
    condition = jsonencode({
      for kind, each in merge(module.accounts.made, { service_account_builder = module.builds.made.service_account_builder }) : trimprefix(kind, "service_account_") => [each.project, each.account_id, each.display_name]
      }) == jsonencode({
      nodes   = ["my-gpus", "night-node", "Nodes of night"]
      airflow = ["my-project", "night-airflow", "Airflow of night"]
      builder = ["my-project", "night-builder", "Builds of night"]
      streams = ["my-gpus", "night-stream", "Streams of night in their database"]
    })
    error_message = "Four accounts."
  }

  # Money and alerts

  assert {
    condition = jsonencode([
      for each in [module.budget[0].made.billing_budget_month] : [
        each.billing_account, each.display_name, each.budget_filter[0].projects, each.budget_filter[0].calendar_period,
        each.amount[0].specified_amount[0].units, [for rule in each.threshold_rules : [rule.threshold_percent, rule.spend_basis]],
      ]
    ]) == jsonencode([["012345-6789AB-CDEF01", "night", ["projects/111", "projects/222"], "MONTH", "5000", [[0.5, null], [0.9, null], [1, "FORECASTED_SPEND"]]]])
    error_message = "The budget covers both projects."
  }
  assert {
    condition = alltrue(concat(
      [for file, each in module.monitoring.made.monitoring_dashboard_each : each.project == "my-gpus" && can(jsondecode(each.dashboard_json).displayName)],
      [length(module.monitoring.made.monitoring_dashboard_each) > 0, length(module.monitoring.made.monitoring_alert_policy_each) > 0],
    ))
    error_message = "Each dashboard of monitoring/google is made."
  }
  assert {
    condition = jsonencode([
      for file, each in module.monitoring.made.monitoring_alert_policy_each : {
        displayName = each.display_name
        combiner    = each.combiner
        severity    = each.severity
        userLabels  = each.user_labels
        autoClose   = each.alert_strategy[0].auto_close
        conditions  = [for one in each.conditions : merge({ displayName = one.display_name }, one.condition_prometheus_query_language[0])]
        documents   = [each.documentation[0].content, each.documentation[0].mime_type, each.documentation[0].subject]
        channels    = each.notification_channels
        project     = each.project
      }
      ]) == jsonencode([
      for file in fileset("../monitoring/google/alerts", "*.json") : {
        for policy in [jsondecode(file("../monitoring/google/alerts/${file}"))] : "policy" => {
          displayName = policy.displayName
          combiner    = policy.combiner
          severity    = policy.severity
          userLabels  = policy.userLabels
          autoClose   = policy.alertStrategy.autoClose
          conditions = [for one in policy.conditions : {
            displayName               = one.displayName
            alert_rule                = one.conditionPrometheusQueryLanguage.alertRule
            disable_metric_validation = one.conditionPrometheusQueryLanguage.disableMetricValidation
            duration                  = one.conditionPrometheusQueryLanguage.duration
            evaluation_interval       = one.conditionPrometheusQueryLanguage.evaluationInterval
            labels                    = null
            query                     = one.conditionPrometheusQueryLanguage.query
            rule_group                = one.conditionPrometheusQueryLanguage.ruleGroup
          }]
          documents = [policy.documentation.content, policy.documentation.mimeType, policy.documentation.subject]
          channels  = ["projects/my-gpus/notificationChannels/1"]
          project   = "my-gpus"
        }
      }["policy"]
    ])
    error_message = "Each policy of monitoring/google/alerts is made as it is written, for our channels."
  }

  # Outputs

  assert {
    condition = jsonencode([output.build, output.database]) == jsonencode([
      join(" ", [
        "--project=my-project", "--config=infra/cloudbuild.yaml", "--service-account=BUILDER",
        "--substitutions=_DRIVER_IMAGE=europe-west4-docker.pkg.dev/my-gpus/night/driver:0.3.0,_STREAM_IMAGE=europe-west4-docker.pkg.dev/my-gpus/night/stream:0.3.0,_WHEELS=https://europe-west4-python.pkg.dev/my-project/night-python/",
      ]),
      { address = "10.60.0.2", user = "streams@x.iam" },
    ])
    error_message = "What the commands after `apply` need."
  }
  assert {
    condition = jsonencode([for document in split("---\n", output.deployment) : yamldecode(document)]) == jsonencode([
      {
        apiVersion = "v1"
        kind       = "ConfigMap"
        metadata   = { name = "deployment", annotations = { "config.kubernetes.io/local-config" = "true" } }
        data = {
          project = "my-gpus", node = "nodes@x", airflow = "airflow@x", airflowId = "42", imageCache = "night-images", reservation = "night"
        }
      },
      { apiVersion = "v1", kind = "ServiceAccount", metadata = { name = "nightshift-product-texts", namespace = "nightshift" }, automountServiceAccountToken = false },
      { apiVersion = "v1", kind = "ServiceAccount", metadata = { name = "nightshift-texts", namespace = "nightshift" }, automountServiceAccountToken = false },
      { apiVersion = "v1", kind = "ServiceAccount", metadata = { name = "nightshift-vectors", namespace = "nightshift" }, automountServiceAccountToken = false },
    ])
    error_message = "The overlay's names, and an account of the cluster for each job and stream."
  }
  assert {
    condition     = strcontains(output.shell, "export NIGHTSHIFT_RUNTIME='gke:projects/my-gpus/locations/europe-west4/clusters/night'\n") && endswith(output.shell, "export NIGHTSHIFT_SINK_URL='postgresql://streams%40x.iam@10.60.0.2/postgres'\ngcloud container clusters get-credentials night --project=my-gpus --location=europe-west4 --dns-endpoint")
    error_message = "The settings for one's own machine."
  }
}

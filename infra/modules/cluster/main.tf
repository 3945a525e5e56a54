resource "google_container_cluster" "this" {
  project             = var.project
  name                = var.name
  location            = var.region
  node_locations      = var.zones
  deletion_protection = var.deletion_protection
  resource_labels     = var.labels

  release_channel {
    channel = "REGULAR"
  }
  # Indexes with a backoff limit of their own, native sidecars, and node pools made for a ComputeClass.
  min_master_version = "1.34"

  network    = var.network
  subnetwork = var.subnetwork
  ip_allocation_policy {
    cluster_secondary_range_name  = var.pods_range
    services_secondary_range_name = var.services_range
  }

  # Nodes without addresses of their own. The control plane is called by its name, whoever IAM admits: no bastion, no list of networks.
  private_cluster_config {
    enable_private_nodes = true
  }
  control_plane_endpoints_config {
    dns_endpoint_config {
      allow_external_traffic = true
    }
    ip_endpoints_config {
      enabled = false
    }
  }

  enable_autopilot = var.autopilot ? true : null
  # Autopilot has it, and refuses to be told.
  datapath_provider        = var.autopilot ? null : "ADVANCED_DATAPATH"
  enable_shielded_nodes    = var.autopilot ? null : true
  remove_default_node_pool = var.autopilot ? null : true
  initial_node_count       = var.autopilot ? null : 1

  # The pool that every cluster begins with, for minutes: an organization may refuse the default account, and disks without its key.
  dynamic "node_config" {
    for_each = var.autopilot ? [] : [1]
    content {
      service_account   = var.node_account
      boot_disk_kms_key = var.kms_key
    }
  }

  # The nodes that Autopilot makes.
  dynamic "cluster_autoscaling" {
    for_each = var.autopilot ? [1] : []
    content {
      auto_provisioning_defaults {
        service_account   = var.node_account
        boot_disk_kms_key = var.kms_key
      }
    }
  }

  workload_identity_config {
    workload_pool = "${var.project}.svc.id.goog"
  }

  # An add-on that is not named here may be off: streams need autoscalers and load balancers, jobs need models from a bucket.
  addons_config {
    horizontal_pod_autoscaling {
      disabled = false
    }
    http_load_balancing {
      disabled = false
    }
    gcs_fuse_csi_driver_config {
      enabled = true
    }
    dynamic "gce_persistent_disk_csi_driver_config" {
      for_each = var.autopilot ? [] : [1]
      content {
        enabled = true
      }
    }
  }
  gateway_api_config {
    channel = "CHANNEL_STANDARD"
  }
  pod_autoscaling {
    hpa_profile = "PERFORMANCE"
  }

  dynamic "node_pool_defaults" {
    for_each = var.autopilot ? [] : [1]
    content {
      node_config_defaults {
        # Image streaming.
        gcfs_config {
          enabled = true
        }
      }
    }
  }

  logging_config {
    enable_components = ["SYSTEM_COMPONENTS", "WORKLOADS"]
  }
  monitoring_config {
    enable_components = ["SYSTEM_COMPONENTS", "HPA", "POD", "DEPLOYMENT", "JOBSET", "DCGM"]
    managed_prometheus {
      enabled = true
    }
  }
  cost_management_config {
    enabled = true
  }

  dynamic "database_encryption" {
    for_each = var.kms_key == null ? [] : [var.kms_key]
    content {
      state    = "ENCRYPTED"
      key_name = database_encryption.value
    }
  }

  maintenance_policy {
    recurring_window {
      start_time = var.maintenance.start
      end_time   = var.maintenance.end
      recurrence = var.maintenance.recurrence
    }
    dynamic "maintenance_exclusion" {
      for_each = var.maintenance.exclusions
      content {
        exclusion_name = maintenance_exclusion.key
        start_time     = maintenance_exclusion.value.start
        end_time       = maintenance_exclusion.value.end
        exclusion_options {
          scope = "NO_MINOR_OR_NODE_UPGRADES"
        }
      }
    }
  }

  lifecycle {
    # Of the pool that is removed at once.
    ignore_changes = [node_config, initial_node_count]
  }
}

# Ordinary nodes: controllers, CPU nights, subscribers.
resource "google_container_node_pool" "default" {
  count          = var.autopilot ? 0 : 1
  project        = var.project
  cluster        = google_container_cluster.this.id
  name           = "default"
  node_locations = var.zones
  # In each zone, to begin with.
  initial_node_count = 1

  autoscaling {
    total_min_node_count = 3
    total_max_node_count = var.default_nodes_max
    location_policy      = "BALANCED"
  }

  node_config {
    machine_type      = "e2-standard-4"
    service_account   = var.node_account
    boot_disk_kms_key = var.kms_key
    workload_metadata_config {
      mode = "GKE_METADATA"
    }
  }

  lifecycle {
    # Else a change of zones would make a new pool.
    ignore_changes = [initial_node_count]
  }
}

output "id" {
  value = google_container_cluster.this.id
}

output "workload_pool" {
  value = google_container_cluster.this.workload_identity_config[0].workload_pool
}

output "reservations" {
  description = "NIGHTSHIFT_RESERVATIONS: the reservation of each machine type that a pool takes from one."
  value = join(",", distinct([
    for each in values(local.pools) :
    "${local.hardware[each.kind].machines[tostring(each.accelerators)]}=${each.reservation}" if each.reservation != null
  ]))
}

output "made" {
  description = "All resources, for the tests of the root."
  value = {
    compute_reservation_made         = google_compute_reservation.made
    container_node_pool_accelerators = google_container_node_pool.accelerators
    container_cluster_this           = google_container_cluster.this
    container_node_pool_default      = google_container_node_pool.default
  }
}

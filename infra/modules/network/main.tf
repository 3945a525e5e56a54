variable "project" {
  type = string
}

variable "number" {
  description = "Of the cluster's project, whose agents use a shared network."
  type        = string
}

variable "region" {
  type = string
}

variable "name" {
  type = string
}

variable "shared" {
  type = object({
    host_project   = string
    network        = string
    subnetwork     = string
    pods_range     = string
    services_range = string
  })
}

variable "nat" {
  type = bool
}

variable "service_access" {
  type = bool
}

locals {
  made = var.shared == null ? 1 : 0
}

resource "google_compute_network" "made" {
  count                   = local.made
  project                 = var.project
  name                    = var.name
  auto_create_subnetworks = false
}

resource "google_compute_subnetwork" "made" {
  count         = local.made
  project       = var.project
  region        = var.region
  name          = var.name
  network       = google_compute_network.made[0].id
  ip_cidr_range = "10.10.0.0/20"
  # Nodes have no addresses of their own: this is their way to Google's APIs.
  private_ip_google_access = true

  secondary_ip_range {
    range_name    = "pods"
    ip_cidr_range = "10.20.0.0/14"
  }
  secondary_ip_range {
    range_name    = "services"
    ip_cidr_range = "10.24.0.0/20"
  }
}

resource "google_compute_router" "made" {
  count   = local.made * (var.nat ? 1 : 0)
  project = var.project
  region  = var.region
  name    = var.name
  network = google_compute_network.made[0].id
}

resource "google_compute_router_nat" "made" {
  count                              = local.made * (var.nat ? 1 : 0)
  project                            = var.project
  region                             = var.region
  name                               = var.name
  router                             = google_compute_router.made[0].name
  nat_ip_allocate_option             = "AUTO_ONLY"
  source_subnetwork_ip_ranges_to_nat = "ALL_SUBNETWORKS_ALL_IP_RANGES"
  # A night's nodes all fetch at once; a fixed number of ports for each would run out.
  enable_dynamic_port_allocation = true
  # Dynamic allocation excludes it.
  enable_endpoint_independent_mapping = false
}

resource "google_compute_global_address" "service_access" {
  count         = local.made * (var.service_access ? 1 : 0)
  project       = var.project
  name          = "${var.name}-services"
  purpose       = "VPC_PEERING"
  address_type  = "INTERNAL"
  prefix_length = 20
  network       = google_compute_network.made[0].id
}

resource "google_service_networking_connection" "service_access" {
  count                   = local.made * (var.service_access ? 1 : 0)
  network                 = google_compute_network.made[0].id
  service                 = "servicenetworking.googleapis.com"
  reserved_peering_ranges = [google_compute_global_address.service_access[0].name]
}

# JobSet's and Kueue's webhooks: the control plane calls them on nodes, where it may open only 443 and 10250 by itself.
resource "google_compute_firewall" "webhooks" {
  count         = local.made
  project       = var.project
  name          = "${var.name}-webhooks"
  network       = google_compute_network.made[0].id
  direction     = "INGRESS"
  source_ranges = [google_compute_subnetwork.made[0].ip_cidr_range]

  allow {
    protocol = "tcp"
    ports    = ["9443"]
  }
}

# GKE's agents in the service project use the host project's subnetwork, and GKE makes its firewall rules there.
resource "google_compute_subnetwork_iam_member" "shared" {
  for_each = var.shared == null ? {} : {
    gke  = "serviceAccount:service-${var.number}@container-engine-robot.iam.gserviceaccount.com"
    apis = "serviceAccount:${var.number}@cloudservices.gserviceaccount.com"
  }

  project    = var.shared.host_project
  region     = var.region
  subnetwork = var.shared.subnetwork
  role       = "roles/compute.networkUser"
  member     = each.value
}

resource "google_project_iam_member" "shared" {
  count   = var.shared == null ? 0 : 1
  project = var.shared.host_project
  role    = "roles/container.hostServiceAgentUser"
  member  = "serviceAccount:service-${var.number}@container-engine-robot.iam.gserviceaccount.com"
}

output "network" {
  value = var.shared == null ? google_compute_network.made[0].id : "projects/${var.shared.host_project}/global/networks/${var.shared.network}"
}

output "subnetwork" {
  value = (var.shared == null
    ? google_compute_subnetwork.made[0].id
  : "projects/${var.shared.host_project}/regions/${var.region}/subnetworks/${var.shared.subnetwork}")
  # A cluster that is made before these grants is refused.
  depends_on = [google_compute_subnetwork_iam_member.shared, google_project_iam_member.shared]
}

output "pods_range" {
  value = var.shared == null ? google_compute_subnetwork.made[0].secondary_ip_range[0].range_name : var.shared.pods_range
}

output "services_range" {
  value = var.shared == null ? google_compute_subnetwork.made[0].secondary_ip_range[1].range_name : var.shared.services_range
}

# The network, once services of Google can be reached in it.
output "service_access" {
  value      = one(google_compute_network.made[*].id)
  depends_on = [google_service_networking_connection.service_access]
}

output "made" {
  description = "All resources, for the tests of the root."
  value = {
    compute_network_made                         = google_compute_network.made
    compute_subnetwork_made                      = google_compute_subnetwork.made
    compute_router_made                          = google_compute_router.made
    compute_router_nat_made                      = google_compute_router_nat.made
    compute_global_address_service_access        = google_compute_global_address.service_access
    service_networking_connection_service_access = google_service_networking_connection.service_access
    compute_firewall_webhooks                    = google_compute_firewall.webhooks
    compute_subnetwork_iam_member_shared         = google_compute_subnetwork_iam_member.shared
    project_iam_member_shared                    = google_project_iam_member.shared
  }
}

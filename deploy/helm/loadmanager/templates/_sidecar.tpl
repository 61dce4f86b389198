{{- /* As deploy/kubernetes/pulsar-sidecar.yaml, which says why: a test compares the two. */}}
{{- define "loadmanager.sidecarPatch" -}}
{{- $sidecar := .Values.sidecar -}}
spec:
  template:
    spec:
      shareProcessNamespace: true
      terminationGracePeriodSeconds: {{ $sidecar.terminationGracePeriodSeconds }}
      {{- with .Values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: loadmanager
          {{- include "loadmanager.image" . | nindent 10 }}
          args: [agent]
          env:
            - name: POD_NAME
              valueFrom:
                fieldRef: {fieldPath: metadata.name}
            - name: LOADMANAGER_BROKER__KIND
              value: pulsar
            - name: LOADMANAGER_BROKER__ID
              value: $(POD_NAME).{{ $sidecar.statefulSet }}.{{ .Release.Namespace }}.svc.{{ $sidecar.clusterDomain }}:{{ $sidecar.webPort }}
            - name: LOADMANAGER_PULSAR__ADMIN_URL
              value: {{ .Values.pulsar.url | quote }}
            {{- if .Values.pulsar.token.secret }}
            - name: LOADMANAGER_PULSAR__TOKEN_FILE
              value: /run/loadmanager/pulsar-token/token
            {{- end }}
            {{- with .Values.pulsar.tls }}
            {{- if .secret }}
            - name: LOADMANAGER_PULSAR__CA_FILE
              value: /run/loadmanager/pulsar-tls/ca.crt
            {{- if .clientCertificate }}
            - name: LOADMANAGER_PULSAR__CERTIFICATE_FILE
              value: /run/loadmanager/pulsar-tls/tls.crt
            - name: LOADMANAGER_PULSAR__KEY_FILE
              value: /run/loadmanager/pulsar-tls/tls.key
            {{- end }}
            {{- end }}
            {{- end }}
            {{- range $key, $value := .Values.zookeeper }}
            {{- if ne $key "chroot" }}
            - name: LOADMANAGER_ZOOKEEPER__{{ upper $key }}
              value: {{ $value | toString | quote }}
            {{- end }}
            {{- end }}
            - name: LOADMANAGER_ZOOKEEPER__CHROOT
              value: {{ include "loadmanager.chroot" . }}
            {{- with .Values.zookeeperTls }}
            {{- if .secret }}
            - name: LOADMANAGER_ZOOKEEPER__TLS_CA_FILE
              value: /run/loadmanager/zookeeper-tls/ca.crt
            {{- if .clientCertificate }}
            - name: LOADMANAGER_ZOOKEEPER__TLS_CERTIFICATE_FILE
              value: /run/loadmanager/zookeeper-tls/tls.crt
            - name: LOADMANAGER_ZOOKEEPER__TLS_KEY_FILE
              value: /run/loadmanager/zookeeper-tls/tls.key
            {{- end }}
            {{- end }}
            {{- end }}
            {{- include "loadmanager.zookeeperEnvironment" . | nindent 12 }}
            - name: LOADMANAGER_LOG__FORMAT
              value: json
            - name: LOADMANAGER_HOST__SCOPE
              value: process
            - name: LOADMANAGER_HOST__CORES
              valueFrom:
                resourceFieldRef: {containerName: {{ $sidecar.container }}, resource: limits.cpu}
            - name: LOADMANAGER_HOST__MEMORY_LIMIT_MIB
              valueFrom:
                resourceFieldRef: {containerName: {{ $sidecar.container }}, resource: limits.memory, divisor: 1Mi}
            {{- range $section, $keys := $sidecar.settings }}
            {{- range $key, $value := $keys }}
            - name: LOADMANAGER_{{ upper $section }}__{{ upper $key }}
              value: {{ ternary $value (toJson $value) (kindIs "string" $value) | quote }}
            {{- end }}
            {{- end }}
          ports:
            - {name: sidecar, containerPort: 7750}
            - {name: sidecar-health, containerPort: 8750}
          startupProbe:
            httpGet: {path: /healthz, port: sidecar-health}
            periodSeconds: 1
            failureThreshold: 60
          livenessProbe:
            httpGet: {path: /health, port: sidecar-health}
            periodSeconds: 5
            timeoutSeconds: 3
            failureThreshold: 3
          resources: {{- toYaml $sidecar.resources | nindent 12 }}
          securityContext:
            runAsNonRoot: true
            runAsUser: {{ $sidecar.runAsUser }}
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
            seccompProfile: {type: RuntimeDefault}
          {{- with include "loadmanager.sidecarMounts" . | trim }}
          volumeMounts: {{- . | nindent 12 }}
          {{- end }}
      {{- with include "loadmanager.sidecarVolumes" . | trim }}
      volumes: {{- . | nindent 8 }}
      {{- end }}
{{- end }}

{{- define "loadmanager.sidecarMounts" -}}
{{- include "loadmanager.pulsarMounts" . }}
{{- include "loadmanager.zookeeperTlsMount" . }}
{{- end }}

{{- define "loadmanager.sidecarVolumes" -}}
{{- include "loadmanager.pulsarVolumes" . }}
{{- include "loadmanager.zookeeperTlsVolume" .Values.zookeeperTls }}
{{- end }}
